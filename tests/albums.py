"""Images with several results, brought there by the workers' own statements, in the books of one database."""

import uuid
from dataclasses import dataclass, replace
from typing import Any

from app.core.jobstore import Claim, StoredVariant
from app.core.jobviews import JobView
from app.core.retention import Keep, Retention
from app.core.versions import ReprocessOutcome, ReprocessTerms, Versions
from contracts.errors import FailureCode
from contracts.images import TransformParams
from contracts.jobs import JobState
from tests.books import DAY_S, OWNER, VARIANTS, Books

WHO = "token 1"
TERMS = ReprocessTerms(pipeline_version=1, jobs_max=None, owner_jobs_max=None, job_deadline_s=DAY_S, who=WHO)
HOUR_S = 3600.0
KEEP = Keep(
    ready_s=4 * HOUR_S,
    failed_s=2 * HOUR_S,
    cancelled_s=HOUR_S,
    message_s=24 * HOUR_S,
    gone_s=HOUR_S,
    failed_source_bytes_max=10**9,
    audit_s=DAY_S,
)


@dataclass(frozen=True, slots=True)
class Image:
    """An image with its first result, which is ready."""

    image_id: uuid.UUID
    first_id: uuid.UUID


def variants_of(job_id: uuid.UUID) -> tuple[StoredVariant, ...]:
    """Variants that tell whose they are by their key."""
    return tuple(replace(variant, key=f"images/{job_id}") for variant in VARIANTS)


@dataclass(frozen=True, slots=True)
class Album:
    """The statements under test, and the steps that bring an image anywhere."""

    books: Books
    versions: Versions
    retention: Retention

    @classmethod
    def of(cls, books: Books) -> "Album":
        retention = Retention(books.database, keep=KEEP, lease_s=30.0, rows_max=100)
        return cls(books, Versions(books.database), retention)

    async def image(self) -> Image:
        claim = await self.books.claimed()
        await self.complete(claim)
        return Image(claim.image_id, claim.job_id)

    async def reprocessed(self, image: Image, *, pipeline_version: int = 1) -> uuid.UUID:
        """Return the id of the queued job that makes the image's next result."""
        terms = replace(TERMS, pipeline_version=pipeline_version)
        outcome, job_id = await self.versions.reprocess(image.image_id, terms=terms)
        assert outcome is ReprocessOutcome.QUEUED
        return job_id

    async def claimed(self, image: Image, *, pipeline_version: int = 1) -> Claim:
        """Return a worker's hold on the job that makes the image's next result."""
        job_id = await self.reprocessed(image, pipeline_version=pipeline_version)
        claim = await self.books.jobs.claim(
            job_id,
            worker_id=uuid.uuid4(),
            lease_s=30.0,
            params=TransformParams(),
            pipeline_versions=(pipeline_version,),
        )
        assert claim is not None
        return claim

    async def complete(self, claim: Claim) -> JobState | None:
        return await self.books.jobs.complete(
            claim.job_id, claim_token=claim.claim_token, variants=variants_of(claim.job_id)
        )

    async def fail(self, claim: Claim) -> JobState | None:
        return await self.books.jobs.fail(claim.job_id, claim_token=claim.claim_token, code=FailureCode.INTERNAL)

    async def renewed(self, image: Image) -> uuid.UUID:
        """Return the id of the job that made the image's newest result just now."""
        claim = await self.claimed(image)
        assert await self.complete(claim) is JobState.READY
        return claim.job_id

    async def view(self, job_id: uuid.UUID) -> JobView:
        view = await self.books.views.find_job(job_id, owner=OWNER)
        assert view is not None
        return view

    async def standing(self, image: Image) -> JobView:
        view = await self.books.views.find_image(image.image_id, owner=OWNER)
        assert view is not None
        return view

    async def shown(self, image: Image) -> Any:
        """Return all that anybody can see of an image and its first job."""
        jobs = await self.books.views.list_jobs(owner=OWNER, states=None, before=None, rows_max=100)
        first = [view for view in jobs if view.job_id == image.first_id]
        return (await self.view(image.first_id), await self.standing(image), first)

    async def state(self, job_id: uuid.UUID) -> str:
        state: str = (await self.books.row(job_id))["state"]
        return state

    async def age(self, *job_ids: uuid.UUID, hours: float) -> None:
        """Let jobs have ended so much earlier."""
        await self.books.raw.execute(
            "UPDATE spillway.jobs SET finished_at = finished_at - $2 * interval '1 hour' WHERE id = ANY ($1)",
            list(job_ids),
            hours,
        )

    async def attach(self, image: Image) -> uuid.UUID:
        """Let a new message name the image; returns the message's id."""
        message_id = uuid.uuid4()
        await self.books.raw.execute(
            "INSERT INTO spillway.messages (id, owner, body) VALUES ($1, $2, 'hello')", message_id, OWNER
        )
        attachment_id = uuid.uuid4()
        await self.books.raw.execute(
            "INSERT INTO spillway.attachments (id, owner, job_id) VALUES ($1, $2, $3)",
            attachment_id,
            OWNER,
            image.first_id,
        )
        answer = await self.books.raw.fetchval(
            "SELECT spillway.attach($1, $2, $3, 1)", OWNER, message_id, [attachment_id]
        )
        assert answer == "attached"
        return message_id
