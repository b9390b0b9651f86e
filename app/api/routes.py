"""The routes: each reads one thing, or hands an admitted upload to its use case."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.admission import Admission, poll_after_s
from app.api.authentication import Authenticator
from app.api.body import Pace, read_body
from app.api.errors import problem_answer
from app.api.health import StoreWatch, readiness
from app.api.metrics import Metrics
from app.api.multipart import OVERHEAD_BYTES_MAX, file_chunks
from app.api.schemas import Accepted, JobStatus, is_final, job_status
from app.api.wire import UPLOAD_PATH, set_problem, take_admitted, wire_of
from app.core.clock import monotonic_s
from app.core.jobstore import JobStore, JobView
from app.core.objects import ObjectStore
from app.core.postgres import DatabaseUnavailableError
from app.core.settings import Settings
from app.core.telemetry import METRICS_MEDIA_TYPE, render_metrics
from app.uploads import Uploads
from contracts.errors import ErrorCode, ServiceError
from contracts.images import VariantName
from contracts.jobs import JobState

JOBS_PATH = "/api/v1/image-jobs"
ACCEPTED_MESSAGE = "The image was accepted and waits to be processed."

_FRAMEWORK_CODES = {404: ErrorCode.NOT_FOUND, 405: ErrorCode.METHOD_NOT_ALLOWED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes work with."""

    settings: Settings
    jobs: JobStore
    store: ObjectStore
    uploads: Uploads
    admission: Admission
    authenticator: Authenticator
    metrics: Metrics
    store_watch: StoreWatch
    metrics_dir: Path | None


def make_app(services: Services) -> FastAPI:
    """Return the framework's part of the API."""
    app = FastAPI(
        title="Spillway",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    routes = _Routes(services)
    app.add_api_route(UPLOAD_PATH, routes.create_image, methods=["POST"], status_code=202, response_model=Accepted)
    app.add_api_route(JOBS_PATH + "/{job_id}", routes.read_job, methods=["GET"], response_model=JobStatus)
    app.add_api_route("/health/live", routes.live, methods=["GET"])
    app.add_api_route("/health/ready", routes.ready, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(DatabaseUnavailableError, routes.on_database_away)
    app.add_exception_handler(HTTPException, _on_framework_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    return app


class _Routes:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        settings = services.settings
        self._pace = Pace(
            body_bytes_max=settings.upload_bytes_max + OVERHEAD_BYTES_MAX,
            idle_s_max=settings.upload_idle_s_max,
            rate_bytes_per_s_min=settings.upload_rate_bytes_per_s_min,
        )

    async def create_image(self, request: Request) -> Response:
        """Accept an upload that has its place."""
        services, admitted, since_s = self._services, take_admitted(request.scope), monotonic_s()
        job_id, image_id = admitted.reservation.job_id, admitted.reservation.image_id
        body = read_body(request.receive, wire=wire_of(request.scope), pace=self._pace, monotonic=monotonic_s)
        async with aclosing(body), aclosing(file_chunks(body, boundary=admitted.boundary)) as chunks:
            source = await services.uploads.receive(admitted.reservation, chunks)
        services.metrics.accepted.inc()
        services.metrics.upload_bytes.inc(source.source_bytes)
        services.metrics.upload_seconds.observe(monotonic_s() - since_s)
        shown = Accepted(
            job_id=str(job_id), image_id=str(image_id), status=JobState.QUEUED.value, message=ACCEPTED_MESSAGE
        )
        headers = {
            "Location": f"{JOBS_PATH}/{job_id}",
            "Retry-After": str(poll_after_s(services.admission.snapshot)),
            "Cache-Control": "no-store",
        }
        return _json(shown.model_dump_json(), status=202, headers=headers)

    async def read_job(self, job_id: str, request: Request) -> Response:
        """Show a job to its owner. Reading changes nothing."""
        owner = await self._services.authenticator.owner(request.headers.raw)
        view = await self._find(job_id, owner=owner)
        shown = job_status(view, links=await self._links(view))
        headers = {"Cache-Control": "no-store"}
        if not is_final(view):
            headers["Retry-After"] = str(poll_after_s(self._services.admission.snapshot))
        return _json(shown.model_dump_json(exclude_none=True), status=200, headers=headers)

    async def live(self) -> Response:
        """Answer as long as the process can."""
        return _json('{"status":"live"}', status=200, headers={"Cache-Control": "no-store"})

    async def ready(self, request: Request) -> Response:
        """Say what is up; 503 only when uploads cannot be accepted."""
        state = readiness(self._services.admission.snapshot, store_up=self._services.store_watch.up)
        if state.status == "unavailable":
            error = ServiceError(ErrorCode.DEPENDENCY_UNAVAILABLE, "Uploads cannot be accepted now.")
            return _problem(request, error, extra={"components": state.components})
        text = json.dumps({"status": state.status, "components": state.components})
        return _json(text, status=200, headers={"Cache-Control": "no-store"})

    async def metrics(self) -> Response:
        """Show the metrics of all API processes together."""
        # Reading the files of all processes takes milliseconds that uploads would wait for.
        text = await asyncio.to_thread(render_metrics, self._services.metrics_dir)
        return Response(content=text, media_type=METRICS_MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    async def on_database_away(self, request: Request, _: Exception) -> Response:
        """Answer for a read that the database did not answer."""
        self._services.metrics.count_failure("database", "read")
        return _problem(request, self._services.admission.outage())

    async def _find(self, job_id: str, *, owner: str) -> JobView:
        try:
            wanted = uuid.UUID(job_id)
        except ValueError:
            raise _not_found() from None
        # One spelling only: braces and prefixes that Python also reads are no ids of ours.
        view = await self._services.jobs.find_job(wanted, owner=owner) if str(wanted) == job_id.lower() else None
        if view is None or view.state is JobState.EXPIRED:
            raise _not_found()
        return view

    async def _links(self, view: JobView) -> dict[VariantName, str]:
        if view.state is not JobState.READY:
            return {}
        expires_s = self._services.settings.result_link_s
        return {
            variant.name: await self._services.store.presigned_get(variant.key, expires_s=expires_s)
            for variant in view.variants
        }


def _json(text: str, *, status: int, headers: Mapping[str, str]) -> Response:
    return Response(content=text, status_code=status, media_type="application/json", headers=dict(headers))


def _problem(request: Request, error: ServiceError, *, extra: Mapping[str, object] | None = None) -> Response:
    set_problem(request.scope, error.code)
    answer = problem_answer(error, extra=extra)
    response = Response(content=answer.body, status_code=answer.status.value)
    response.raw_headers = list(answer.headers)
    return response


async def _on_service_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    return _problem(request, error)


async def _on_framework_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = _FRAMEWORK_CODES.get(error.status_code, ErrorCode.MALFORMED_REQUEST)
    response = _problem(request, ServiceError(code, "Look at the documentation of the interface."))
    allowed = (error.headers or {}).get("Allow")
    if allowed is not None:
        response.headers["Allow"] = allowed
    return response


async def _on_invalid(request: Request, _: Exception) -> Response:
    return _problem(request, ServiceError(ErrorCode.INVALID_FIELD, "A parameter is not valid."))


def _not_found() -> ServiceError:
    return ServiceError(ErrorCode.NOT_FOUND, "There is no such job.")
