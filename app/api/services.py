"""What the handlers of the API work with, put together once for each process."""

from dataclasses import dataclass
from pathlib import Path

from app.admission import Admission
from app.api.authentication import Authenticator
from app.api.health import StoreWatch
from app.api.metrics import Metrics
from app.api.waiting import Waiters
from app.core.jobstore import JobStore
from app.core.jobviews import JobViews
from app.core.messages import MessageStore
from app.core.objects import ObjectStore
from app.core.registry import Registry
from app.core.settings import Settings
from app.places import Places
from app.reserving import Reserving
from app.uploads import Uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One process's stores, use cases and registers."""

    settings: Settings
    jobs: JobStore
    views: JobViews
    messages: MessageStore
    registry: Registry
    store: ObjectStore
    contents: ObjectStore  #: the same store over connections of its own: readers never take those of uploads
    uploads: Uploads
    admission: Admission
    reserving: Reserving
    authenticator: Authenticator
    metrics: Metrics
    store_watch: StoreWatch
    places: Places
    waiters: Waiters
    metrics_dir: Path | None
