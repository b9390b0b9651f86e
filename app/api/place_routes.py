"""The routes of places: one is taken on a declaration, completed once the file is in the store, or given back.

Invariant: no byte of a file comes this way, so a refusal costs its client none.
"""

from datetime import timedelta
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError

from app.admission import poll_after_s
from app.api.answers import json_response
from app.api.documented import answers_with, header, problems
from app.api.ids import not_found, path_id
from app.api.json_body import json_pace, json_request, read_json
from app.api.place_schemas import PlaceShown, PlaceWanted
from app.api.promises import digest_of
from app.api.schemas import Accepted
from app.api.services import Services
from app.api.uploading import accepted_response
from app.api.wire import PLACES_PATH, header_values
from app.core.clock import utc_now
from app.core.jobstore import Declared, KnownKey
from app.places import Taken
from contracts.errors import ErrorCode, ServiceError
from contracts.jobs import JobState

_E = ErrorCode
_REFUSED = (_E.OWNER_LIMIT, _E.BACKLOG_FULL, _E.STAGING_FULL)
_BODY = (_E.TRUNCATED_BODY, _E.UPLOAD_TOO_SLOW, _E.TOO_MANY_BYTES, _E.UNSUPPORTED_FORMAT, _E.INVALID_FIELD)
_FILE = (
    _E.UPLOAD_INCOMPLETE,
    _E.TOO_MANY_BYTES,
    _E.UNSUPPORTED_FORMAT,
    _E.DIGEST_MISMATCH,
    _E.TOO_MANY_PIXELS,
    _E.TOO_LARGE_DIMENSION,
    _E.RESERVATION_LOST,
)
_ACCEPTED = answers_with(
    {
        "Location": "Where the job is.",
        "Retry-After": "Seconds until another look is worth it; only while the job is not final.",
        "Idempotency-Replayed": "`true` when the place was completed before.",
    },
    "The job, in its present state.",
)


#: Digits of a size that anybody means; what is longer is as much too large, and Python does not read any length.
_LENGTH_DIGITS_MAX = 18


def add_place_routes(app: FastAPI, services: Services) -> None:
    """Add the routes of places."""
    routes = PlaceRoutes(services)
    one = PLACES_PATH + "/{job_id}"
    taking: dict[str, Any] = json_request(PlaceWanted)
    # Without a body the headers say the same.
    taking["requestBody"]["required"] = False
    taking["parameters"] = [
        header("Upload-Length", "Without a body: the size of the file in bytes."),
        header("Upload-Type", "Without a body: the media type of the file."),
        header("Repr-Digest", "Without a body: SHA-256 of the file, as `sha-256=:BASE64:`."),
    ]
    app.add_api_route(
        PLACES_PATH,
        routes.take,
        methods=["POST"],
        status_code=201,
        response_model=PlaceShown,
        responses=problems(*_REFUSED, *_BODY),
        openapi_extra=taking,
        name="take_place",
    )
    app.add_api_route(
        one + "/complete",
        routes.complete,
        methods=["POST"],
        status_code=202,
        response_model=Accepted,
        responses={202: _ACCEPTED, **problems(_E.NOT_FOUND, _E.EXPIRED, *_FILE)},
        name="complete_place",
    )
    app.add_api_route(
        one,
        routes.give_back,
        methods=["DELETE"],
        status_code=204,
        responses=problems(_E.NOT_FOUND),
        name="give_place_back",
    )


class PlaceRoutes:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def take(self, request: Request) -> Response:
        """Give a place for a declared file, and a link for it."""
        services = self._services
        owner = await services.authenticator.owner(request.headers.raw)
        declared = await self._declared(request)
        taken = await services.places.take(declared, owner=owner)
        services.metrics.admitted.inc()
        return _taken_response(taken)

    async def complete(self, job_id: str, request: Request) -> Response:
        """Make the job of a place whose file is in the store; a repeat shows the job."""
        services = self._services
        owner = await services.authenticator.owner(request.headers.raw)
        wanted = path_id(job_id)
        completed = await services.places.complete(wanted, owner=owner)
        view = await services.views.find_job(wanted, owner=owner)
        if view is None:
            raise not_found()
        if view.state is JobState.EXPIRED:
            raise ServiceError(ErrorCode.EXPIRED, "The job is no longer kept.")
        if completed:
            services.metrics.accepted.inc()
            services.metrics.upload_bytes.inc(view.source.source_bytes)
        known = KnownKey(
            job_id=view.job_id, image_id=view.image_id, attachment_id=None, state=view.state, fingerprint=None
        )
        return accepted_response(known, poll_s=poll_after_s(services.admission.snapshot), replayed=not completed)

    async def give_back(self, job_id: str, request: Request) -> Response:
        """End a place that is not wanted any more."""
        owner = await self._services.authenticator.owner(request.headers.raw)
        if not await self._services.places.give_back(path_id(job_id), owner=owner):
            raise not_found()
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    async def _declared(self, request: Request) -> Declared:
        settings = self._services.settings
        if _has_body(request):
            wanted = await read_json(request, PlaceWanted, pace=json_pace(settings))
        else:
            wanted = declared_in(request.headers.raw)
        if wanted.bytes > settings.upload_bytes_max:
            raise ServiceError(ErrorCode.TOO_MANY_BYTES, f"At most {settings.upload_bytes_max} bytes.")
        return Declared(source_bytes=wanted.bytes, sha256=wanted.sha256.lower(), media_type=wanted.media_type)


def declared_in(headers: list[tuple[bytes, bytes]]) -> PlaceWanted:
    """Return what the headers of a request without a body declare.

    Raises:
        ServiceError: `invalid_field`.
    """
    lengths, types = header_values(headers, b"upload-length"), header_values(headers, b"upload-type")
    sha256 = digest_of(headers, b"repr-digest")
    if sha256 is None or len(types) != 1 or len(lengths) != 1 or not lengths[0].isdigit():
        raise _undeclared()
    size_bytes = int(lengths[0][:_LENGTH_DIGITS_MAX])
    try:
        return PlaceWanted(bytes=size_bytes, media_type=types[0].decode("latin-1"), sha256=sha256)
    except ValidationError as error:
        raise _undeclared() from error


def _has_body(request: Request) -> bool:
    lengths = header_values(request.headers.raw, b"content-length")
    return bool(header_values(request.headers.raw, b"transfer-encoding")) or (bool(lengths) and lengths != [b"0"])


def _taken_response(taken: Taken) -> Response:
    path = f"{PLACES_PATH}/{taken.job_id}"
    shown = PlaceShown(
        job_id=str(taken.job_id),
        image_id=str(taken.image_id),
        upload_url=taken.put.url,
        upload_headers=taken.put.headers,
        complete_url=f"{path}/complete",
        expires_at=utc_now() + timedelta(seconds=taken.left_s),
    )
    headers = {"Location": path, "Cache-Control": "no-store"}
    return json_response(shown.model_dump_json(), status=201, headers=headers)


def _undeclared() -> ServiceError:
    message = "Declare the file in the body or in Upload-Length, Upload-Type and Repr-Digest."
    return ServiceError(ErrorCode.INVALID_FIELD, message)
