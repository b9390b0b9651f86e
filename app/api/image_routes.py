"""The routes of images: what stands for one now, and its erasure.

Invariant: 204 only when no copy of the image is left in the store.
"""

from fastapi import Request, Response

from app.api.answers import json_response
from app.api.ids import not_found, path_id
from app.api.job_routes import JobRoutes, checked
from app.api.schemas import Erasing
from app.api.services import Services
from app.core.jobstore import EraseOutcome
from app.core.objects import StoreUnavailableError
from app.core.telemetry import logger
from app.erasure import Erasure
from contracts.errors import ErrorCode, ServiceError

#: Workers look at what they hold several times a lease; a client need not ask more often than this.
ERASING_RETRY_AFTER_S = 2


class ImageRoutes:
    """The handlers."""

    def __init__(self, services: Services, *, jobs: JobRoutes) -> None:
        self._services = services
        self._jobs = jobs
        self._erasure = Erasure(jobs=services.jobs, views=services.views, store=services.contents)

    async def read(self, image_id: str, request: Request) -> Response:
        """Show the job that stands for an image: its newest ready one, or else its newest."""
        services = self._services
        owner = await services.authenticator.owner(request.headers.raw)
        view = await services.views.find_image(path_id(image_id), owner=owner)
        return self._jobs.answer(checked(view), request)

    async def erase(self, image_id: str, request: Request) -> Response:
        """Erase an image: 204 when nothing of it is left, 202 while a worker stops."""
        owner = await self._services.authenticator.owner(request.headers.raw)
        wanted = path_id(image_id)
        try:
            outcome = await self._erasure.erase(wanted, owner=owner)
        except StoreUnavailableError as error:
            self._services.metrics.count_failure("store", "erase")
            raise ServiceError(ErrorCode.DEPENDENCY_UNAVAILABLE, "The store does not answer: ask again.") from error
        if outcome is None:
            raise not_found()
        logger().info("image.erased" if outcome is EraseOutcome.ERASED else "image.erasing", image_id=str(wanted))
        if outcome is EraseOutcome.ERASED:
            return Response(status_code=204, headers={"Cache-Control": "no-store"})
        headers = {"Retry-After": str(ERASING_RETRY_AFTER_S), "Cache-Control": "no-store"}
        return json_response(Erasing(image_id=str(wanted)).model_dump_json(), status=202, headers=headers)
