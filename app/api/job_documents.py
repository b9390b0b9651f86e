"""The documents of jobs as bytes with their ETags, rendered once for each version, language and window of links.

Invariant: pure in job, language and window, so that every process gives the same bytes; what is remembered is bounded,
and is looked up only for a job that its owner was found to own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.api.conditions import etag_of
from app.api.expiry import expires_at
from app.api.schemas import job_status
from app.core.jobviews import JobView
from app.core.links import Links
from app.core.retention import Keep
from contracts.errors import Language
from contracts.images import VariantName
from contracts.jobs import JobState

#: About 2 kB each.
DOCUMENTS_MAX = 10_000

_Key = tuple[UUID, int, int, Language, datetime | None]


@dataclass(frozen=True, slots=True)
class Document:
    """One representation of a job."""

    body: bytes
    etag: str


class JobDocuments:
    """Renders jobs for their owners; oldest out first."""

    def __init__(self, links: Links, *, keep: Keep, now_s: Callable[[], float]) -> None:
        self._links = links
        self._keep = keep
        self._now_s = now_s
        self._rendered: dict[_Key, Document] = {}

    def of(self, view: JobView, *, language: Language) -> Document:
        """Return what the owner of a job that is not expired sees now."""
        # Only links depend on the time, and only messages of failures on the language.
        window = self._links.window(self._now_s()) if view.state is JobState.READY else 0
        spoken = language if view.state is JobState.FAILED else Language.ENGLISH
        key = (view.job_id, view.version, window, spoken, view.message_created_at)
        document = self._rendered.get(key)
        if document is None:
            document = self._render(view, window=window, language=spoken)
            if len(self._rendered) >= DOCUMENTS_MAX:
                del self._rendered[next(iter(self._rendered))]
            self._rendered[key] = document
        return document

    def _render(self, view: JobView, *, window: int, language: Language) -> Document:
        links: dict[VariantName, str] = {}
        if view.state is JobState.READY:
            links = {variant.name: self._links.sign(variant.key, window=window) for variant in view.variants}
        until = expires_at(view, keep=self._keep)
        body = job_status(view, links=links, expires_at=until, language=language)
        text = body.model_dump_json(exclude_none=True).encode()
        return Document(text, etag_of(text))
