"""The routes of messages' attachments as data. Reading changes nothing."""

from fastapi import Request, Response

from app.admission import poll_after_s
from app.api.answers import json_response
from app.api.attachment_schemas import attachment_shown
from app.api.conditions import etag_of, is_known
from app.api.contents import expired
from app.api.ids import not_found, path_id
from app.api.preferences import language_of
from app.api.services import Services
from app.api.wire import header_values
from app.core.retention import keep_settings
from contracts.jobs import FINAL, JobState


class Attachments:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._keep = keep_settings(services.settings)

    async def read(self, attachment_id: str, request: Request) -> Response:
        """Show an attachment to its owner."""
        owner = await self._services.authenticator.owner(request.headers.raw)
        attachment = await self._services.messages.find_attachment(path_id(attachment_id), owner=owner)
        if attachment is None:
            raise not_found()
        if attachment.job.state is JobState.EXPIRED:
            raise expired()
        language = language_of(header_values(request.headers.raw, b"accept-language"))
        text = attachment_shown(attachment, self._keep, language=language).model_dump_json(exclude_none=True)
        extra = {}
        if attachment.job.state not in FINAL:
            extra["Retry-After"] = str(poll_after_s(self._services.admission.snapshot))
        return fresh_or_known(request, text, extra=extra)


def fresh_or_known(request: Request, text: str, *, extra: dict[str, str]) -> Response:
    """Return a document that must always be asked for anew, or 304 when the client has this one."""
    etag = etag_of(text.encode())
    headers = {"ETag": etag, "Cache-Control": "no-store", "Vary": "Accept-Language", **extra}
    if is_known(header_values(request.headers.raw, b"if-none-match"), etag=etag):
        return Response(status_code=304, headers=headers)
    return json_response(text, status=200, headers=headers)
