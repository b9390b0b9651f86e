"""The doctor's hand: mends what two looks have found, by the statements and steps that the roles use.

Invariant: each mend asks its row again, in the statement that changes it or right before an object is deleted, and does
nothing when the row has moved on; what is deleted is never more than what was found.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.backlog import Backlog
from app.core.jobstore import Claim, JobStore
from app.core.objects import DELETE_KEYS_MAX, ObjectStore
from app.core.versions import ReprocessOutcome, ReprocessTerms, Versions
from contracts.errors import FailureCode
from contracts.images import TransformParams
from contracts.keys import original_key, staging_key
from stack.doctor_books import quiet_s_of
from stack.doctor_finds import Difference, Kind
from stack.doctor_judge import judge_object, may_be_joined
from stack.doctor_keys import OriginalObject, SourceObject, VariantObject, our_object
from stack.doctor_rows import BOOK_NAMES, Books, DoctorRows, JobFacts
from worker.cleaner import Cleaner

#: Tries of one statement that gives way to whoever else moves the books.
TRIES_MAX = 50
TRY_PAUSE_S = 0.05
#: Steps of the janitor that are taken until what was marked is swept, and rows announced in each.
STEPS_MAX = 100
ANNOUNCED_ROWS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a hand works with."""

    objects: ObjectStore
    rows: DoctorRows
    jobs: JobStore
    backlog: Backlog
    versions: Versions
    cleaner: Cleaner
    terms: Callable[[], Awaitable[ReprocessTerms]]  #: on which a new version takes its place now
    params: TransformParams
    lease_s: float


class Hand:
    """Mends differences, kind by kind."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._menders: Mapping[Kind, Callable[[Sequence[Difference]], Awaitable[set[Difference]]]] = {
            # First: what others do to mend moves the books.
            Kind.GATE_MISSING: self._write_gate,
            Kind.OBJECT_WITHOUT_ROW: self._delete_objects,
            Kind.OBJECT_AFTER_SWEEP: self._sweep_again,
            Kind.UNFINISHED_MULTIPART: self._abort,
            Kind.SOURCE_MISSING: self._end_without_source,
            Kind.FAILED_SOURCE_MISSING: self._give_up_source,
            Kind.VARIANT_MISSING: self._make_anew,
            Kind.BOOK_DIFFERS: self._mend_books,
            Kind.SHARE_DIFFERS: self._mend_shares,
            Kind.NEEDLESS_ANNOUNCEMENT: self._withdraw,
            Kind.NEVER_ANNOUNCED: self._announce,
            Kind.MESSAGES_MISSING: self._announce_waiting,
        }

    async def mend(self, differences: Sequence[Difference]) -> set[Difference]:
        """Return those of the differences that are mended."""
        mended: set[Difference] = set()
        for kind, mender in self._menders.items():
            of_kind = [difference for difference in differences if difference.kind is kind]
            if of_kind:
                mended |= await mender(of_kind)
        return mended

    async def _delete_objects(self, found: Sequence[Difference]) -> set[Difference]:
        mended: set[Difference] = set()
        for start in range(0, len(found), DELETE_KEYS_MAX):
            still = await self._still(found[start : start + DELETE_KEYS_MAX])
            await self._tools.objects.delete([difference.subject for difference in still])
            mended |= set(still)
        return mended

    async def _still(self, found: Sequence[Difference]) -> list[Difference]:
        """Return the differences about objects that the rows do not explain right now either."""
        ours = [(difference, stands_for) for difference in found if (stands_for := our_object(difference.subject))]
        rows = self._tools.rows
        jobs = await rows.jobs({it.job_id for _, it in ours if isinstance(it, SourceObject | VariantObject)})
        images = await rows.images_needed({it.image_id for _, it in ours if isinstance(it, OriginalObject)})
        return [difference for difference, it in ours if judge_object(it, jobs=jobs, images=images) is difference.kind]

    async def _sweep_again(self, found: Sequence[Difference]) -> set[Difference]:
        """Mark cancelled and expired jobs and take the janitor's step; a ready or failed job's old source just goes."""
        still = await self._still(found)
        named = {difference: our_object(difference.subject) for difference in still}
        job_ids = {it.job_id for it in named.values() if isinstance(it, SourceObject | VariantObject)}
        image_ids = {it.image_id for it in named.values() if isinstance(it, OriginalObject)}
        await self._tools.rows.mark_for_sweep(job_ids=job_ids, image_ids=image_ids)
        # What no sweep of a row will reach: nothing can ask for it any more.
        jobs = await self._tools.rows.jobs(job_ids)
        await self._tools.objects.delete(
            [
                difference.subject
                for difference, it in named.items()
                if isinstance(it, SourceObject | VariantObject) and _is_over(jobs.get(it.job_id), it)
            ]
        )
        left = set(still)
        for _ in range(STEPS_MAX):
            left = {difference for difference in left if await self._tools.objects.exists(difference.subject)}
            if not left:
                break
            await self._tools.cleaner.sweep_gone()
        return set(still) - left

    async def _abort(self, found: Sequence[Difference]) -> set[Difference]:
        mended: set[Difference] = set()
        for difference in found:
            stands_for = our_object(difference.subject)
            if isinstance(stands_for, SourceObject):
                jobs = await self._tools.rows.jobs({stands_for.job_id})
                if not may_be_joined(jobs.get(stands_for.job_id)):
                    await self._tools.objects.abort_multipart(difference.subject, upload_id=difference.evidence)
                    mended.add(difference)
        return mended

    async def _end_without_source(self, found: Sequence[Difference]) -> set[Difference]:
        """Do what a worker would: claim the job, find nothing, and end it."""
        jobs, worker_id = self._tools.jobs, uuid.uuid4()
        mended: set[Difference] = set()
        for difference in found:
            job_id = UUID(difference.subject)
            claim = await jobs.claim(
                job_id,
                worker_id=worker_id,
                lease_s=self._tools.lease_s,
                params=self._tools.params,
                pipeline_versions=[int(difference.evidence.split()[1])],
            )
            if claim is None:
                continue
            if await self._source_is_back(claim):
                continue
            if await jobs.fail(job_id, claim_token=claim.claim_token, code=FailureCode.SOURCE_MISSING) is not None:
                await self._tools.backlog.give_bytes_back([job_id])
                mended.add(difference)
        return mended

    async def _source_is_back(self, claim: Claim) -> bool:
        """Hand the claim back when the source is there after all, or the store does not say: as if nothing had been."""
        back = True
        try:
            back = await self._tools.objects.exists(staging_key(claim.job_id))
        finally:
            if back:
                await self._tools.jobs.retry(
                    claim.job_id, claim_token=claim.claim_token, delay_s=0.0, attempt_spent=False, attempts_max=1
                )
        return back

    async def _give_up_source(self, found: Sequence[Difference]) -> set[Difference]:
        mended: set[Difference] = set()
        for difference in found:
            job_id = UUID(difference.subject)
            if await self._tools.objects.exists(staging_key(job_id)):
                continue
            if await self._tools.rows.mark_source_gone(job_id, version=int(difference.evidence.split()[0])):
                await self._tools.backlog.give_bytes_back([job_id])
                mended.add(difference)
        return mended

    async def _make_anew(self, found: Sequence[Difference]) -> set[Difference]:
        """Queue the next version of each image whose original is there, once."""
        in_work: dict[UUID, bool] = {}
        for difference in found:
            image_id = UUID(difference.evidence.split()[0])
            if image_id not in in_work:
                in_work[image_id] = await self._reprocess(image_id)
        return {difference for difference in found if in_work[UUID(difference.evidence.split()[0])]}

    async def _reprocess(self, image_id: UUID) -> bool:
        if not await self._tools.objects.exists(original_key(image_id)):
            return False
        outcome, _ = await self._tools.versions.reprocess(image_id, terms=await self._tools.terms())
        return outcome in (ReprocessOutcome.QUEUED, ReprocessOutcome.IN_WORK)

    async def _write_gate(self, found: Sequence[Difference]) -> set[Difference]:
        await self._tools.rows.write_gate_anew()
        return set(found)

    async def _mend_books(self, found: Sequence[Difference]) -> set[Difference]:
        drift = {difference.subject.removeprefix("gate."): int(difference.evidence) for difference in found}
        wanted = Books(**{name: drift.get(name, 0) for name in BOOK_NAMES})
        done = await _insist(lambda: self._tools.rows.mend_books(wanted))
        return set(found) if done else set()

    async def _mend_shares(self, found: Sequence[Difference]) -> set[Difference]:
        mended: set[Difference] = set()
        for difference in found:
            owner, drift_jobs = difference.subject, int(difference.evidence)

            async def attempt(owner: str = owner, drift_jobs: int = drift_jobs) -> bool:
                return await self._tools.rows.mend_share(owner, drift_jobs=drift_jobs)

            if await _insist(attempt):
                mended.add(difference)
        return mended

    async def _withdraw(self, found: Sequence[Difference]) -> set[Difference]:
        rows = self._tools.rows
        return {difference for difference in found if await rows.delete_announcement(int(difference.evidence))}

    async def _announce(self, found: Sequence[Difference]) -> set[Difference]:
        backlog = self._tools.backlog
        return {difference for difference in found if await backlog.announce_one(UUID(difference.subject))}

    async def _announce_waiting(self, found: Sequence[Difference]) -> set[Difference]:
        quiet_s = quiet_s_of(self._tools.lease_s)
        for _ in range(STEPS_MAX):
            announced = await self._tools.backlog.announce_again(quiet_s=quiet_s, rows_max=ANNOUNCED_ROWS_MAX)
            if len(announced) < ANNOUNCED_ROWS_MAX:
                return set(found)
        return set()


def _is_over(job: JobFacts | None, it: SourceObject | VariantObject) -> bool:
    """Return whether an object is one that its row, which stays, has given up for good."""
    if job is None:
        return False
    return job.source_gone if isinstance(it, SourceObject) else job.results_gone and not job.sweep_due


async def _insist(attempt: Callable[[], Awaitable[bool]]) -> bool:
    """Try a statement that gives way to others until it is carried out, so many times at most."""
    for _ in range(TRIES_MAX):
        if await attempt():
            return True
        await asyncio.sleep(TRY_PAUSE_S)
    return False
