"""Where the registry's handlers are found, and what their answers look like in the interface's document."""

from fastapi import FastAPI

from app.api.admin_routes import AdminRoutes
from app.api.admin_schemas import DeadLetters, FailedPage, InspectedShown, RegisteredShown, ReplaysShown, ReplaysWanted
from app.api.documented import answers_with, problems
from app.api.json_body import json_request
from app.api.services import Services
from app.api.wire import ADMIN_PATH
from contracts.errors import ErrorCode

_E = ErrorCode
_BODY = (_E.TRUNCATED_BODY, _E.UPLOAD_TOO_SLOW, _E.TOO_MANY_BYTES, _E.UNSUPPORTED_FORMAT, _E.INVALID_FIELD)
_REFUSED = (_E.NOT_FAILED, _E.SOURCE_MISSING, _E.OWNER_LIMIT, _E.BACKLOG_FULL, _E.STAGING_FULL)
_DRY = answers_with({}, "A dry run: the job, which would be queued anew if there is a place.")


def add_admin_routes(app: FastAPI, services: Services) -> None:
    """Add the routes of the registry."""
    routes = AdminRoutes(services)
    one_job = f"{ADMIN_PATH}/jobs/{{job_id}}"
    app.add_api_route(
        f"{ADMIN_PATH}/failed-jobs",
        routes.page,
        methods=["GET"],
        response_model=FailedPage,
        responses=problems(_E.INVALID_FIELD),
        name="list_failed_jobs",
    )
    app.add_api_route(
        one_job,
        routes.inspect,
        methods=["GET"],
        response_model=InspectedShown,
        responses=problems(_E.NOT_FOUND),
        name="inspect_job",
    )
    app.add_api_route(
        f"{one_job}/replay",
        routes.replay,
        methods=["POST"],
        status_code=202,
        response_model=RegisteredShown,
        responses={200: {"model": RegisteredShown, **_DRY}, **problems(_E.NOT_FOUND, _E.INVALID_FIELD, *_REFUSED)},
        name="replay_job",
    )
    app.add_api_route(
        f"{ADMIN_PATH}/replays",
        routes.replay_many,
        methods=["POST"],
        response_model=ReplaysShown,
        responses=problems(*_BODY),
        openapi_extra=json_request(ReplaysWanted),
        name="replay_jobs",
    )
    app.add_api_route(
        f"{ADMIN_PATH}/dead-letters",
        routes.dead_letters,
        methods=["GET"],
        response_model=DeadLetters,
        responses=problems(_E.INVALID_FIELD),
        name="list_dead_letters",
    )
