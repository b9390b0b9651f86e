"""Settings of all roles: parsed once from `SPILLWAY_*` at start, frozen, passed in parts, never global.

`.env.example` documents each variable with its unit, default and effect; a test holds the two together.
"""

import re
from collections.abc import Callable, Collection
from typing import Annotated, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.core.crashpoints import CrashPoint
from contracts.images import ImageLimits, TransformParams
from contracts.messages import PIPELINE_VERSION

PREFIX = "SPILLWAY_"
#: 90 days.
AUDIT_KEEP_S = 90 * 86_400.0
#: Ten years: added to the present twice over, it still is a moment that the database and the language can write.
LIFETIME_S_MAX = 10 * 365 * 86_400.0
#: A day: a retry that comes later than that comes after most deadlines.
PAUSE_S_MAX = 86_400.0
#: An hour for one image: longer than any place in the line is worth.
IMAGE_S_MAX = 3600.0

#: Scheme, host and port as a browser writes them: no path, no wildcard.
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")


def _split(value: object) -> object:
    return tuple(part for part in re.split(r"[\s,]+", value) if part) if isinstance(value, str) else value


def _exact(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is no origin: write https://host or https://host:port, in lower case")
    return origins


def _rising(versions: tuple[int, ...]) -> tuple[int, ...]:
    if min(versions, default=1) < 1:
        raise ValueError("versions are counted from 1")
    return tuple(sorted(set(versions)))


def _server_url(url: str, name: str | None, schemes: Collection[str]) -> str:
    """Return a server's URL with its scheme as the clients write it: the first one where two mean the same.

    The URL itself is in no message: there may be a password in it.
    """
    variable, wanted = f"{PREFIX}{name}".upper(), " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes)
    try:
        parts = urlsplit(url)
        port = None if "," in parts.netloc else parts.port  # several hosts, which PostgreSQL's client takes
        host = parts.hostname or ("postgresql" in schemes and parse_qs(parts.query).get("host"))
    except ValueError:  # its text repeats what could not be read
        raise ValueError(f"{variable} is no URL: write {wanted}") from None
    if parts.scheme not in schemes:
        raise ValueError(f"{variable} has no scheme that its client takes: write {wanted}")
    if not host or port == 0:
        raise ValueError(f"{variable} names no host, or no port, that could be reached: write {wanted}")
    scheme = "postgresql" if parts.scheme == "postgres" else parts.scheme
    return scheme + url.strip()[len(parts.scheme) :]


def _names_server(*schemes: str) -> Callable[[str, ValidationInfo], str]:
    return lambda url, info: _server_url(url, info.field_name, schemes)


def _names_server_in_secret(*schemes: str) -> Callable[[SecretStr, ValidationInfo], SecretStr]:
    return lambda url, info: SecretStr(_server_url(url.get_secret_value(), info.field_name, schemes))


HttpUrl = Annotated[str, AfterValidator(_names_server("http", "https"))]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_names_server_in_secret("postgresql", "postgres"))]
BrokerUrl = Annotated[SecretStr, AfterValidator(_names_server_in_secret("amqp", "amqps"))]

#: Written with commas or spaces between.
Versions = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split), AfterValidator(_rising)]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_exact)]


class Settings(BaseSettings):
    """Everything a role can be told. A bad value ends the start with the variable's name."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        # Inputs are passwords, and URLs with passwords.
        hide_input_in_errors=True,
    )

    # Servers
    database_url: DatabaseUrl = SecretStr("postgresql://spillway@127.0.0.1:5432/spillway")
    database_listen_url: DatabaseUrl | None = None
    database_pool_connections_max: int = Field(default=16, ge=2, le=200)
    database_acquire_timeout_s: float = Field(default=2.0, gt=0, le=60)
    database_statement_timeout_s: float = Field(default=2.0, gt=0, le=5)
    broker_url: BrokerUrl = SecretStr("amqp://guest:guest@127.0.0.1:5672/")
    broker_prefix: str = Field(default="spillway", pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    broker_timeout_s: float = Field(default=5.0, gt=0, le=60)
    broker_heartbeat_s: int = Field(default=5, ge=1, le=60)
    s3_endpoint_url: HttpUrl = "http://127.0.0.1:8333"
    s3_public_url: HttpUrl | None = None
    s3_region: str = "us-east-1"
    s3_bucket: str = Field(default="spillway", min_length=3, max_length=63)
    s3_access_key: SecretStr = SecretStr("")
    s3_secret_key: SecretStr = SecretStr("")
    s3_timeout_s: float = Field(default=10.0, gt=0, le=300)
    s3_connections_max: int = Field(default=64, ge=2, le=1000)

    # HTTP edge
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=1, le=65535)
    api_processes: int = Field(default=1, ge=1, le=64)
    api_metrics_dir: str | None = None
    upload_bytes_max: int = Field(default=ImageLimits().source_bytes_max, ge=1, le=1024**3)
    upload_deadline_s: float = Field(default=120.0, gt=0, le=3600)
    upload_lease_s: float = Field(default=15.0, ge=1, le=600)
    upload_rate_bytes_per_s_min: int = Field(default=4096, ge=0)
    upload_idle_s_max: float = Field(default=10.0, gt=0, le=600)
    uploads_in_flight_max: int = Field(default=256, ge=1, le=10_000)
    header_bytes_max: int = Field(default=16 * 1024, ge=1024, le=65536)
    token_cache_s: float = Field(default=5.0, ge=0, le=300)
    token_cache_entries_max: int = Field(default=10_000, ge=1)
    result_link_s: int = Field(default=900, ge=60, le=86_400)
    result_link_window_s: int = Field(default=300, ge=1, le=86_400)
    place_deadline_s: float = Field(default=300.0, gt=0, le=3600)
    key_lifetime_s: float = Field(default=86_400.0, gt=0, le=LIFETIME_S_MAX)
    replays_per_owner_max: int = Field(default=4, ge=1, le=1000)
    prefer_wait_s_max: float = Field(default=30.0, ge=0, le=300)
    prefer_waiters_max: int = Field(default=2000, ge=1, le=100_000)
    page_rows_max: int = Field(default=100, ge=1, le=1000)
    message_attachments_max: int = Field(default=20, ge=1, le=1000)
    auth_failures_per_minute_max: int = Field(default=60, ge=1)
    cors_origins: Origins = ()
    metrics_token_required: bool = False

    # Admission
    admission_policy: Literal["none", "count"] = "count"
    admission_jobs_max: int | None = Field(default=None, ge=1)
    admission_staging_bytes_max: int = Field(default=8 * 1024**3, ge=1)
    admission_owner_jobs_max: int | None = Field(default=None, ge=1)
    admission_snapshot_s: float = Field(default=0.25, gt=0, le=5)

    # Jobs
    job_deadline_s: float = Field(default=86_400.0, gt=0, le=LIFETIME_S_MAX)
    job_lease_s: float = Field(default=30.0, ge=2, le=3600)
    job_attempts_max: int = Field(default=5, ge=1, le=100)
    retry_base_s: float = Field(default=1.0, gt=0, le=PAUSE_S_MAX)
    retry_cap_s: float = Field(default=60.0, gt=0, le=PAUSE_S_MAX)

    # Retention
    ready_keep_s: float = Field(default=30 * 86_400.0, gt=0, le=LIFETIME_S_MAX)
    failed_keep_s: float = Field(default=7 * 86_400.0, gt=0, le=LIFETIME_S_MAX)
    cancelled_keep_s: float = Field(default=86_400.0, gt=0, le=LIFETIME_S_MAX)
    message_keep_s: float = Field(default=365 * 86_400.0, gt=0, le=LIFETIME_S_MAX)
    expired_answers_s: float = Field(default=7 * 86_400.0, gt=0, le=LIFETIME_S_MAX)
    failed_source_bytes_max: int = Field(default=4 * 1024**3, ge=0)
    superseded_keep_s: float | None = Field(default=None, gt=0, le=LIFETIME_S_MAX)
    audit_keep_s: float = Field(default=AUDIT_KEEP_S, gt=0, le=LIFETIME_S_MAX)

    # Worker
    worker_concurrency: int = Field(default=2, ge=1, le=256)
    worker_prefetch: int | None = Field(default=None, ge=1, le=2000)
    worker_children: int | None = Field(default=None, ge=1, le=256)
    worker_children_nice: int = Field(default=5, ge=0, le=19)
    worker_stop_grace_s: float = Field(default=20.0, gt=0, le=3600)
    worker_pipeline_versions: Versions = ()

    # Relay
    relay_batch_rows: int = Field(default=100, ge=1, le=1000)
    relay_poll_s: float = Field(default=1.0, gt=0, le=60)
    relay_lease_s: float = Field(default=10.0, ge=1, le=600)

    # Janitor
    janitor_interval_s: float = Field(default=2.0, gt=0, le=60)
    janitor_rows_max: int = Field(default=500, ge=1, le=1000)

    # Every role
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)
    stop_grace_s: float = Field(default=10.0, gt=0, le=600)
    process_seen_s: float = Field(default=2.0, gt=0, le=60)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    crash_point: CrashPoint | None = None

    # Images
    image_pixels_max: int = Field(default=ImageLimits().pixels_max, ge=1)
    image_avif_pixels_max: int = Field(default=ImageLimits().avif_pixels_max, ge=1)
    image_side_px_max: int = Field(default=ImageLimits().side_px_max, ge=1)
    image_cpu_s_max: float = Field(default=ImageLimits().cpu_s_max, gt=0, le=IMAGE_S_MAX)
    image_wall_s_max: float = Field(default=ImageLimits().wall_s_max, gt=0, le=IMAGE_S_MAX)
    image_memory_bytes_max: int = Field(default=ImageLimits().memory_bytes_max, ge=192 * 1024**2)
    webp_effort: int = Field(default=TransformParams().webp_effort, ge=0, le=6)
    webp_quality: int = Field(default=TransformParams().webp_quality, ge=1, le=100)
    jpeg_quality: int = Field(default=TransformParams().jpeg_quality, ge=1, le=100)
    master_side_px_max: int = Field(default=TransformParams().master_side_px_max, ge=128, le=4096)

    @model_validator(mode="after")
    def _prefetch_covers_concurrency(self) -> Self:
        if self.worker_prefetch is not None and self.worker_prefetch < self.worker_concurrency:
            raise ValueError(
                f"{PREFIX}WORKER_PREFETCH must be at least {PREFIX}WORKER_CONCURRENCY "
                f"({self.worker_prefetch} < {self.worker_concurrency})"
            )
        return self

    @model_validator(mode="after")
    def _keys_die_before_their_jobs(self) -> Self:
        shortest_s = min(self.ready_keep_s, self.failed_keep_s, self.cancelled_keep_s)
        if self.key_lifetime_s > shortest_s:
            raise ValueError(
                f"{PREFIX}KEY_LIFETIME_S must not exceed the shortest retention of a job "
                f"({self.key_lifetime_s:g} s > {shortest_s:g} s)"
            )
        return self

    @model_validator(mode="after")
    def _links_outlive_their_windows(self) -> Self:
        if self.result_link_window_s >= self.result_link_s:
            raise ValueError(
                f"{PREFIX}RESULT_LINK_WINDOW_S must be less than {PREFIX}RESULT_LINK_S "
                f"({self.result_link_window_s} s >= {self.result_link_s} s)"
            )
        return self

    @model_validator(mode="after")
    def _superseded_results_outlive_their_links(self) -> Self:
        if self.superseded_keep_s is not None and self.superseded_keep_s < self._links_end_s:
            raise ValueError(
                f"{PREFIX}SUPERSEDED_KEEP_S must be at least {PREFIX}RESULT_LINK_S and {PREFIX}RESULT_LINK_WINDOW_S "
                f"together ({self.superseded_keep_s:g} s < {self._links_end_s} s)"
            )
        return self

    @property
    def _links_end_s(self) -> int:
        return self.result_link_s + self.result_link_window_s

    @property
    def superseded_s(self) -> float:
        """Seconds that the objects of a result are kept after a newer one stands for its image."""
        return self.superseded_keep_s or self._links_end_s

    @property
    def served_versions(self) -> tuple[int, ...]:
        """Versions of the pipeline that a worker serves."""
        return self.worker_pipeline_versions or (PIPELINE_VERSION,)

    @property
    def prefetch(self) -> int:
        """Unacked deliveries per worker process."""
        return self.worker_prefetch or self.worker_concurrency

    def image_limits(self) -> ImageLimits:
        """Return the limits of one image."""
        return ImageLimits(
            source_bytes_max=self.upload_bytes_max,
            pixels_max=self.image_pixels_max,
            avif_pixels_max=self.image_avif_pixels_max,
            side_px_max=self.image_side_px_max,
            cpu_s_max=self.image_cpu_s_max,
            wall_s_max=self.image_wall_s_max,
            memory_bytes_max=self.image_memory_bytes_max,
        )

    def transform_params(self) -> TransformParams:
        """Return the parameters that decide the variants' bytes."""
        return TransformParams(
            master_side_px_max=self.master_side_px_max,
            jpeg_quality=self.jpeg_quality,
            webp_quality=self.webp_quality,
            webp_effort=self.webp_effort,
        )


def load_settings() -> Settings:
    """Parse the environment once.

    Raises:
        pydantic.ValidationError: a variable is out of its range; the message names it.
    """
    return Settings()
