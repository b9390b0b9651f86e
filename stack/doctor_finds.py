"""What the doctor can find, in words: what each kind means, where it most likely comes from, what mends it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Kind(StrEnum):
    """Ways in which database, object store and broker can disagree."""

    OBJECT_WITHOUT_ROW = "object_without_row"
    OBJECT_AFTER_SWEEP = "object_after_sweep"
    UNFINISHED_MULTIPART = "unfinished_multipart"
    SOURCE_MISSING = "source_missing"
    FAILED_SOURCE_MISSING = "failed_source_missing"
    ORIGINAL_MISSING = "original_missing"
    VARIANT_MISSING = "variant_missing"
    GATE_MISSING = "gate_missing"
    BOOK_DIFFERS = "book_differs"
    SHARE_DIFFERS = "share_differs"
    NEEDLESS_ANNOUNCEMENT = "needless_announcement"
    NEVER_ANNOUNCED = "never_announced"
    MESSAGES_MISSING = "messages_missing"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a kind means to somebody who has never seen it."""

    what: str
    cause: str  #: the most likely one
    remedy: str  #: what `--mend` does


EXPLANATIONS: dict[Kind, Explanation] = {
    Kind.OBJECT_WITHOUT_ROW: Explanation(
        "an object of ours that no row knows",
        "a process that was frozen, or cut off from the store, wrote after its row had been swept and deleted; "
        "or the database was restored from an older copy",
        "the object is deleted, after another look at the rows",
    ),
    Kind.OBJECT_AFTER_SWEEP: Explanation(
        "an object that its row says was deleted",
        "a late writer: a worker or a client with a link wrote once more after the job's last sweep",
        "cancelled and expired jobs are marked in their row for one more sweep, which the janitor's own step does; "
        "a staged file, or a variant that newer ones have replaced, for which nothing can ask any more, is deleted",
    ),
    Kind.UNFINISHED_MULTIPART: Explanation(
        "parts of an upload that was never joined, under a key that no upload has in hand",
        "the answer to the start of a multipart upload was lost and it was started anew, or a process died and its "
        "row is gone",
        "the multipart upload is aborted; an object under the same key is not touched",
    ),
    Kind.SOURCE_MISSING: Explanation(
        "a job that is accepted and not finished, whose source is not in the store",
        "somebody or something else deleted it, or the store lost it",
        "nothing brings the bytes back: a job that waits is claimed and ends `failed(source_missing)`, one that a "
        "worker holds is left to it",
    ),
    Kind.FAILED_SOURCE_MISSING: Explanation(
        "a failed job that says it can be replayed, whose source is not in the store",
        "somebody or something else deleted it, or the store lost it",
        "the row is marked so that a replay answers `source_missing`, and the bytes leave their book",
    ),
    Kind.ORIGINAL_MISSING: Explanation(
        "an image that is ready, whose original is not in the store",
        "somebody or something else deleted it, or the store lost it",
        "nothing: bring the object back from a copy of the store, or erase the image (DELETE /api/v1/images/{id})",
    ),
    Kind.VARIANT_MISSING: Explanation(
        "an image that is ready, of which a variant is not in the store",
        "somebody or something else deleted it, or the store lost it",
        "a job for the image's next version is queued, when there is a place: it makes all variants anew from the "
        "original, and until it is ready nothing changes; without the original there is nothing to be done",
    ),
    Kind.GATE_MISSING: Explanation(
        "the row that holds the admission books is missing, so nothing is admitted",
        "it was deleted by hand, or a copy was restored in parts: no statement of ours deletes it, and no migration "
        "writes it a second time",
        "the row is written anew with the sums over the rows, in one statement that waits for whoever moves the books "
        "and lets nobody move them meanwhile",
    ),
    Kind.BOOK_DIFFERS: Explanation(
        "a number in the admission books that is not the sum over the rows",
        "rows or books were changed by hand, or a copy was restored in parts: no statement of ours moves one "
        "without the other",
        "the book becomes the sum, in one statement that changes nothing if anybody moved the books meanwhile",
    ),
    Kind.SHARE_DIFFERS: Explanation(
        "an owner's share of the places that is not the count over the owner's rows",
        "rows or shares were changed by hand, or a release without shares was still running during the upgrade",
        "the share becomes the count, in one statement that changes nothing if anybody moved the share meanwhile",
    ),
    Kind.NEEDLESS_ANNOUNCEMENT: Explanation(
        "an announcement of a job that does not wait",
        "a relay died between publishing and its note of it, and none has run since",
        "the announcement is deleted, if the job still does not wait; publishing it would do no harm either",
    ),
    Kind.NEVER_ANNOUNCED: Explanation(
        "a job that waits, is due, and was neither announced nor is about to be",
        "rows were changed by hand: job and announcement are written by one statement",
        "it is announced, if it still waits",
    ),
    Kind.MESSAGES_MISSING: Explanation(
        "jobs that were announced and wait, for which the broker holds no message",
        "the queue was deleted or purged, or the broker lost its data, and no janitor has run since",
        "all waiting jobs are announced again, as the janitor does; a second delivery finds nothing to do",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One finding. `evidence` is what a second look must find again for it to count."""

    kind: Kind
    subject: str
    detail: str
    evidence: str
    since: datetime | None = None  #: by the clock of whoever holds the subject; None when nobody noted it

    @property
    def identity(self) -> tuple[Kind, str, str]:
        """What makes two findings the same."""
        return self.kind, self.subject, self.evidence


def lasting(first: Iterable[Difference], second: Iterable[Difference]) -> list[Difference]:
    """Return what the second look found exactly as the first one had, kind by kind."""
    seen = {difference.identity for difference in first}
    return sorted(
        (difference for difference in second if difference.identity in seen),
        key=lambda difference: (_ORDER[difference.kind], difference.subject, difference.evidence),
    )


_ORDER = {kind: place for place, kind in enumerate(Kind)}


@dataclass(slots=True)
class Tally:
    """What was looked at, and what was seen and left alone."""

    objects: int = 0
    multiparts: int = 0
    rows: int = 0
    foreign: int = 0  #: keys that are not exactly of our shapes
    young: int = 0  #: objects and uploads too young to be judged
