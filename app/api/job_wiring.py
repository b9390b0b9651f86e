"""Where the handlers of jobs and images are found, and what their answers look like in the interface's document."""

from typing import Any

from fastapi import FastAPI

from app.api.documented import answers_with, header, problems
from app.api.image_routes import ImageRoutes
from app.api.job_routes import JobRoutes
from app.api.schemas import Erasing, JobPage, JobStatus
from app.api.services import Services
from app.api.wire import IMAGES_PATH, JOBS_PATH
from contracts.errors import ErrorCode

_LANGUAGE = header("Accept-Language", "English or Russian, for the message of a failure.")
_IF_NONE_MATCH = header("If-None-Match", "ETags that the client has: 304 when one of them is the present one.")
_PREFER = header(
    "Prefer",
    "`wait=N`: the answer is held until the job changes or N seconds have passed. With `If-None-Match`, a job that is "
    "another one already is answered at once.",
)
_STATUS_HEADERS = {
    "ETag": "Strong: of all that is shown. Links are signed anew for each window of some minutes.",
    "Cache-Control": "Always `no-store`.",
    "Retry-After": "Seconds until another look is worth it; only while the job is not final.",
    "Preference-Applied": "`wait=N` when the answer was, or would have been, held.",
    "Content-Language": "Of the message of a failure.",
}
_JOB = answers_with(_STATUS_HEADERS, "The job, whatever became of it.")
_NOT_MODIFIED = answers_with(_STATUS_HEADERS, "The client has it already.")
_STOPPING = answers_with(
    {"Retry-After": "Seconds until another look is worth it.", "Cache-Control": "Always `no-store`."},
    "A worker was asked to stop and has not confirmed yet.",
)
_READ_PROBLEMS = (ErrorCode.NOT_FOUND, ErrorCode.EXPIRED)


def add_job_routes(app: FastAPI, services: Services) -> None:
    """Add the routes of jobs and images."""
    jobs = JobRoutes(services)
    images = ImageRoutes(services, jobs=jobs)
    one_job, one_image = f"{JOBS_PATH}/{{job_id}}", f"{IMAGES_PATH}/{{image_id}}"
    read: dict[str, Any] = {
        "methods": ["GET"],
        "response_model": JobStatus,
        "responses": {200: _JOB, 304: _NOT_MODIFIED, **problems(*_READ_PROBLEMS)},
    }
    app.add_api_route(
        one_job, jobs.read, openapi_extra={"parameters": [_IF_NONE_MATCH, _PREFER, _LANGUAGE]}, name="read_job", **read
    )
    app.add_api_route(
        one_image, images.read, openapi_extra={"parameters": [_IF_NONE_MATCH, _LANGUAGE]}, name="read_image", **read
    )
    app.add_api_route(
        JOBS_PATH,
        jobs.page,
        methods=["GET"],
        response_model=JobPage,
        responses=problems(ErrorCode.INVALID_FIELD),
        openapi_extra={"parameters": [_LANGUAGE]},
        name="list_jobs",
    )
    app.add_api_route(
        one_job,
        jobs.cancel,
        methods=["DELETE"],
        response_model=JobStatus,
        responses={
            200: _JOB,
            202: {"model": JobStatus, **_STOPPING},
            **problems(*_READ_PROBLEMS, ErrorCode.ALREADY_FINAL),
        },
        openapi_extra={"parameters": [_LANGUAGE]},
        name="cancel_job",
    )
    app.add_api_route(
        one_image,
        images.erase,
        methods=["DELETE"],
        status_code=204,
        responses={202: {"model": Erasing, **_STOPPING}, **problems(ErrorCode.NOT_FOUND)},
        name="erase_image",
    )
