"""What a client would like: the language of messages (RFC 9110, 12.5.4), and an answer that waits (RFC 7240). Pure.

Invariant: a preference that is not understood is as good as none.
"""

import re
from collections.abc import Sequence

from contracts.errors import Language

#: Language ranges that are looked at; a browser sends a handful.
LANGUAGE_RANGES_MAX = 32

_WAIT = re.compile(rb'(?:^|,)[ \t]*wait[ \t]*=[ \t]*("?)([0-9]{1,9})\1[ \t]*(?=[,;]|$)', re.IGNORECASE)
_RANGE = re.compile(
    rb"[ \t]*(\*|[a-z]{1,8})(?:-[a-z0-9-]*)?[ \t]*(?:;[ \t]*q[ \t]*=[ \t]*([01](?:\.[0-9]{0,3})?)[ \t]*)?"
)
_LANGUAGES = {language.value.encode(): language for language in Language} | {b"*": Language.ENGLISH}


def wait_s_of(prefer: Sequence[bytes], *, wait_s_max: float) -> int | None:
    """Return for how many whole seconds an answer may be held, at most `wait_s_max`; None without the preference."""
    found = _WAIT.search(b",".join(prefer))
    return None if found is None else min(int(found[2]), int(wait_s_max))


def language_of(accept_language: Sequence[bytes]) -> Language:
    """Return the language liked best among ours; English when none is named."""
    liked, best = 0.0, Language.ENGLISH
    for text in b",".join(accept_language).lower().split(b",")[:LANGUAGE_RANGES_MAX]:
        found = _RANGE.fullmatch(text)
        if found is None or found[1] not in _LANGUAGES:
            continue
        quality = 1.0 if found[2] is None else float(found[2])
        if quality > liked:
            liked, best = quality, _LANGUAGES[found[1]]
    return best
