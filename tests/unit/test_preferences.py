"""Preferences of a client: what is understood, and that anything else is as good as none."""

import pytest

from app.api.preferences import language_of, wait_s_of
from contracts.errors import FAILURE_MESSAGES, FAILURE_MESSAGES_RU, FailureCode, Language


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ([], None),
        ([b"wait=10"], 10),
        ([b"WAIT = 10"], 10),
        ([b'wait="10"'], 10),
        ([b"respond-async, wait=7; foo=1"], 7),
        ([b"respond-async", b"wait=7"], 7),
        ([b"wait=5, wait=9"], 5),
        ([b"wait=0"], 0),
        ([b"wait=3600"], 30),
        ([b"wait=999999999999"], None),
        ([b"wait=-1"], None),
        ([b"wait=1.5"], None),
        ([b'wait="10'], None),
        ([b"wait"], None),
        ([b"await=10"], None),
        ([b"\xff\x00"], None),
    ],
)
def test_the_preference_to_wait(headers: list[bytes], wait_s: int | None) -> None:
    assert wait_s_of(headers, wait_s_max=30.0) == wait_s


@pytest.mark.parametrize(
    ("headers", "language"),
    [
        ([], "en"),
        ([b"ru"], "ru"),
        ([b"ru-RU,ru;q=0.9,en-US;q=0.8,en;q=0.7"], "ru"),
        ([b"en-US,en;q=0.9,ru;q=0.8"], "en"),
        ([b"de, ru;q=0.5"], "ru"),
        ([b"de;q=0.9, *;q=0.1"], "en"),
        ([b"ru;q=0, en;q=0.1"], "en"),
        ([b"ru;q=0"], "en"),
        ([b"en;q=0.3", b"RU;q=0.4"], "ru"),
        ([b"ru;q=2"], "en"),
        ([b"\xd1\x80\xd1\x83"], "en"),
        ([b"de," * 40 + b"ru"], "en"),
    ],
)
def test_the_language_liked_best(headers: list[bytes], language: str) -> None:
    assert language_of(headers) is Language(language)


def test_every_failure_has_a_message_in_every_language() -> None:
    assert set(FAILURE_MESSAGES) == set(FAILURE_MESSAGES_RU) == set(FailureCode)
    assert not set(FAILURE_MESSAGES.values()) & set(FAILURE_MESSAGES_RU.values())
