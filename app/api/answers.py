"""The framework's response objects for our answers."""

from collections.abc import Mapping

from fastapi import Request, Response

from app.api.errors import problem_answer
from app.api.wire import set_problem
from contracts.errors import ServiceError


def json_response(text: str, *, status: int, headers: Mapping[str, str]) -> Response:
    """Return an answer whose body is JSON already."""
    return Response(content=text, status_code=status, media_type="application/json", headers=dict(headers))


def problem_response(request: Request, error: ServiceError, *, extra: Mapping[str, object] | None = None) -> Response:
    """Return a problem document and note its code; `extra` adds members to it."""
    set_problem(request.scope, error.code)
    answer = problem_answer(error, extra=extra)
    response = Response(content=answer.body, status_code=answer.status.value)
    response.raw_headers = list(answer.headers)
    return response
