"""The routes of jobs: one that is read, perhaps waited for; an owner's list of them; and one that is cancelled.

Invariant: reading changes, restarts and prolongs nothing. Foreign and unknown ids look the same.
"""

from typing import Annotated
from uuid import UUID

from fastapi import Query, Request, Response

from app.admission import poll_after_s
from app.api.answers import json_response
from app.api.conditions import is_known
from app.api.cursors import cursor_of, cursor_text
from app.api.ids import not_found, path_id
from app.api.job_documents import JobDocuments
from app.api.preferences import language_of, wait_s_of
from app.api.schemas import ShownState, is_final
from app.api.services import Services
from app.api.wire import header_values, wire_of
from app.core.clock import utc_now
from app.core.jobviews import Cursor, JobView
from app.core.links import Links, LinkTimes
from app.core.objects import store_settings
from app.core.retention import keep_settings
from app.core.telemetry import logger
from contracts.errors import ErrorCode, Language, ServiceError
from contracts.jobs import JobState

#: Entries of a page when the client does not say.
PAGE_ROWS = 20
#: No `limit` asks for more than any setting allows; the setting itself cuts the page short.
ROWS_MAX = 1000

#: A cancel that finds nothing to do looks why; a replay in between gives it one more try.
CANCEL_TRIES = 2


class JobRoutes:
    """The handlers, and what they share: the rendered documents."""

    def __init__(self, services: Services) -> None:
        self._services = services
        settings = services.settings
        times = LinkTimes(valid_s=settings.result_link_s, window_s=settings.result_link_window_s)
        links = Links(store_settings(settings), times=times)
        self._documents = JobDocuments(links, keep=keep_settings(settings), now_s=lambda: utc_now().timestamp())

    async def read(self, job_id: str, request: Request) -> Response:
        """Show a job to its owner, with `Prefer: wait` once it has changed."""
        owner = await self._services.authenticator.owner(request.headers.raw)
        wanted = path_id(job_id)
        view = await self.find(wanted, owner=owner)
        wait_s = wait_s_of(
            header_values(request.headers.raw, b"prefer"), wait_s_max=self._services.settings.prefer_wait_s_max
        )
        if wait_s is None:
            return self.answer(view, request)
        applied = True
        # What is final, or is not what the client knows, is worth telling at once.
        if not is_final(view) and not self._is_news(view, request):
            applied = await self._services.waiters.wait(
                view.job_id, version=view.version, wait_s=wait_s, receive=request.receive, wire=wire_of(request.scope)
            )
            view = await self.find(wanted, owner=owner)
        response = self.answer(view, request)
        if applied:
            response.headers["Preference-Applied"] = f"wait={wait_s}"
        return response

    async def page(
        self,
        request: Request,
        state: Annotated[list[ShownState] | None, Query(description="Only jobs in these states.")] = None,
        rows_max: Annotated[
            int, Query(alias="limit", ge=1, le=ROWS_MAX, description="Most entries of the page.")
        ] = PAGE_ROWS,
        cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    ) -> Response:
        """Show one page of an owner's jobs, newest first; expired ones are not shown."""
        services = self._services
        owner = await services.authenticator.owner(request.headers.raw)
        rows = min(rows_max, services.settings.page_rows_max)
        states = [JobState(shown.value) for shown in state or ShownState]
        # One more than asked for tells whether there is another page.
        found = await services.views.list_jobs(owner=owner, states=states, before=cursor_of(cursor), rows_max=rows + 1)
        views, language = found[:rows], _language(request)
        jobs = b",".join(self._documents.of(view, language=language).body for view in views)
        text = f'{{"jobs":[{jobs.decode()}]'
        if len(found) > rows:
            text += f',"next_cursor":"{cursor_text(Cursor(views[-1].accepted_at, views[-1].job_id))}"'
        return json_response(text + "}", status=200, headers={"Cache-Control": "no-store"})

    async def cancel(self, job_id: str, request: Request) -> Response:
        """Cancel a job: 200 when it is cancelled, 202 while its worker stops."""
        services = self._services
        owner = await services.authenticator.owner(request.headers.raw)
        wanted = path_id(job_id)
        for _ in range(CANCEL_TRIES):
            state = await services.jobs.cancel(wanted, owner=owner)
            view = await self.find(wanted, owner=owner)
            if state is not None:
                event = "job.cancelled" if state is JobState.CANCELLED else "job.cancelling"
                logger().info(event, job_id=str(wanted))
                return self._cancelled(view, request)
            if is_final(view):
                break
        raise ServiceError(ErrorCode.ALREADY_FINAL, "There is nothing left to cancel.")

    async def find(self, job_id: UUID, *, owner: str) -> JobView:
        """Return an owner's job.

        Raises:
            ServiceError: `not_found` or `expired`.
        """
        return checked(await self._services.views.find_job(job_id, owner=owner))

    def answer(self, view: JobView, request: Request, *, status: int = 200) -> Response:
        """Return the document of a job, or 304 when the client has it."""
        document = self._documents.of(view, language=_language(request))
        headers = {"ETag": document.etag, "Cache-Control": "no-store"}
        if not is_final(view):
            headers["Retry-After"] = str(poll_after_s(self._services.admission.snapshot))
        if request.method == "GET" and is_known(_if_none_match(request), etag=document.etag):
            return Response(status_code=304, headers=headers)
        if view.state is JobState.FAILED:
            headers["Content-Language"] = _language(request).value
        return Response(document.body, status_code=status, media_type="application/json", headers=headers)

    def _cancelled(self, view: JobView, request: Request) -> Response:
        return self.answer(view, request, status=200 if is_final(view) else 202)

    def _is_news(self, view: JobView, request: Request) -> bool:
        known = _if_none_match(request)
        return bool(known) and not is_known(known, etag=self._documents.of(view, language=_language(request)).etag)


def checked(view: JobView | None) -> JobView:
    """Return a job that is there.

    Raises:
        ServiceError: `not_found` or `expired`.
    """
    if view is None:
        raise not_found()
    if view.state is JobState.EXPIRED:
        raise ServiceError(ErrorCode.EXPIRED, "It was kept as long as was said, or erased.")
    return view


def _language(request: Request) -> Language:
    return language_of(header_values(request.headers.raw, b"accept-language"))


def _if_none_match(request: Request) -> list[bytes]:
    return header_values(request.headers.raw, b"if-none-match")
