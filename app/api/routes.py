"""The routes: each reads one thing, or hands an admitted upload to its use case."""

import asyncio
import json

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.api.admin_wiring import add_admin_routes
from app.api.allowed import allowed_methods
from app.api.answers import json_response, problem_response
from app.api.exchange import unexpected
from app.api.health import readiness
from app.api.job_wiring import add_job_routes
from app.api.message_routes import add_message_routes
from app.api.place_routes import add_place_routes
from app.api.services import Services
from app.api.upload_wiring import add_upload_routes
from app.core.postgres import DatabaseUnavailableError
from app.core.telemetry import METRICS_MEDIA_TYPE, render_metrics
from app.core.tokens import Scope
from contracts.errors import ErrorCode, ServiceError

_FRAMEWORK_CODES = {404: ErrorCode.NOT_FOUND, 405: ErrorCode.METHOD_NOT_ALLOWED}


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
    add_upload_routes(app, services)
    add_job_routes(app, services)
    app.add_api_route("/health/live", routes.live, methods=["GET"])
    app.add_api_route("/health/ready", routes.ready, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    add_message_routes(app, services)
    add_place_routes(app, services)
    add_admin_routes(app, services)
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(DatabaseUnavailableError, routes.on_database_away)
    app.add_exception_handler(HTTPException, _on_framework_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_unexpected)
    return app


class _Routes:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def live(self) -> Response:
        """Answer as long as the process can."""
        return json_response('{"status":"live"}', status=200, headers={"Cache-Control": "no-store"})

    async def ready(self, request: Request) -> Response:
        """Say what is up; 503 only when uploads cannot be accepted."""
        state = readiness(self._services.admission.snapshot, store_up=self._services.store_watch.up)
        if state.status == "unavailable":
            error = ServiceError(ErrorCode.DEPENDENCY_UNAVAILABLE, "Uploads cannot be accepted now.")
            return problem_response(request, error, extra={"components": state.components})
        text = json.dumps({"status": state.status, "components": state.components})
        return json_response(text, status=200, headers={"Cache-Control": "no-store"})

    async def metrics(self, request: Request) -> Response:
        """Show the metrics of all API processes together, to whom the settings let read them."""
        if self._services.settings.metrics_token_required:
            await self._services.authenticator.require(request.headers.raw, Scope.METRICS)
        # Reading the files of all processes takes milliseconds that uploads would wait for.
        text = await asyncio.to_thread(render_metrics, self._services.metrics_dir)
        return Response(content=text, media_type=METRICS_MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    async def on_database_away(self, request: Request, _: Exception) -> Response:
        """Answer for a read that the database did not answer."""
        self._services.metrics.count_failure("database", "read")
        return problem_response(request, self._services.admission.outage())


async def _on_service_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    return problem_response(request, error)


async def _on_framework_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = _FRAMEWORK_CODES.get(error.status_code, ErrorCode.MALFORMED_REQUEST)
    response = problem_response(request, ServiceError(code, "Look at the documentation of the interface."))
    if code is ErrorCode.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = allowed_methods(request.app.routes, request.scope)
    return response


async def _on_unexpected(request: Request, _: Exception) -> Response:
    # Without this the framework answers in its own words; it raises the error again, to be logged further out.
    return problem_response(request, unexpected())


async def _on_invalid(request: Request, _: Exception) -> Response:
    return problem_response(request, ServiceError(ErrorCode.INVALID_FIELD, "A parameter is not valid."))
