"""The only module that speaks to the object store: any S3, every call with its own deadline.

Staging, results and health use separate clients, so that a store that hangs on one cannot take the slots of another.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import aioboto3
import aiohttp
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from app.core.listing import Lister
from app.core.parts import Part
from app.core.settings import Settings
from app.core.signed import SignedBody, SignedPut
from app.core.telemetry import ServerWatch

CONNECT_TIMEOUT_S = 2.0
#: The smallest part that every S3 takes, except the last; also what one upload keeps in memory.
PART_BYTES = 5 * 1024 * 1024
#: DeleteObjects takes at most this many keys.
DELETE_KEYS_MAX = 1000
#: What `stream` hands over at once; also about what one reader keeps in memory.
CHUNK_BYTES = 256 * 1024
#: A probe that takes longer than this means "away".
PROBE_TIMEOUT_S = 2.0
#: What a probe of the work itself writes and reads: the same bytes under the same key, whoever asks.
PROBE_KEY, PROBE_BODY = "health/probe", b"probe"

_MISSING_CODES = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_CHANGED_CODES = frozenset({"PreconditionFailed", "412"})
_EXISTS_CODES = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})


class StoreUnavailableError(Exception):
    """The object store did not answer in time, refused, or has no room. The outcome of a write is unknown."""


class StoreSilentError(StoreUnavailableError):
    """The object store gave no answer at all: its line was cut, or its time ran out."""


class ObjectMissingError(Exception):
    """There is no object under this key."""


class ObjectTooLargeError(Exception):
    """The object is larger than the caller allowed."""


class ObjectChangedError(Exception):
    """The object is not the one that the caller had looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What the store says of an object; `sha256` (hexadecimal) only when the object was written with it."""

    size_bytes: int
    etag: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How one process reaches the object store."""

    endpoint_url: str
    public_url: str
    region: str
    bucket: str
    access_key: str
    secret_key: str
    timeout_s: float
    connections_max: int


def store_settings(settings: Settings, *, connections_max: int | None = None) -> StoreSettings:
    """Return the store's part of the settings."""
    return StoreSettings(
        endpoint_url=settings.s3_endpoint_url,
        public_url=settings.s3_public_url or settings.s3_endpoint_url,
        region=settings.s3_region,
        bucket=settings.s3_bucket,
        access_key=settings.s3_access_key.get_secret_value(),
        secret_key=settings.s3_secret_key.get_secret_value(),
        timeout_s=settings.s3_timeout_s,
        connections_max=connections_max or settings.s3_connections_max,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clients:
    calls: Any
    parts: Any  #: does not sign bodies: they cannot be read before they are sent; our SHA-256 is compared later
    health: Any
    public: Any


class ObjectStore(Lister):
    """One bucket. Open it with `async with ObjectStore.open(settings)`; its clients live as long as the process."""

    def __init__(self, settings: StoreSettings, clients: _Clients) -> None:
        self._settings = settings
        self._client = clients.calls
        self._part_client = clients.parts
        self._health = clients.health
        self._public = clients.public
        self._watch = ServerWatch("store")

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: StoreSettings) -> AsyncIterator[Self]:
        """Open the clients; no call is made, so the store may still be away."""
        session = aioboto3.Session(
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            region_name=settings.region,
        )
        async with AsyncExitStack() as stack:

            async def client(url: str, connections: int, *, signs_bodies: bool = True) -> Any:
                config = _client_config(settings, connections=connections, signs_bodies=signs_bodies)
                return await stack.enter_async_context(session.client("s3", endpoint_url=url, config=config))

            clients = _Clients(
                calls=await client(settings.endpoint_url, settings.connections_max),
                parts=await client(settings.endpoint_url, settings.connections_max, signs_bodies=False),
                health=await client(settings.endpoint_url, 2),
                public=await client(settings.public_url, 1),
            )
            yield cls(settings, clients)

    async def ensure_bucket(self) -> None:
        """Create the bucket when it is not there."""
        try:
            async with self._call():
                await self._client.create_bucket(Bucket=self._settings.bucket)
        except ClientError as error:
            if _code(error) not in _EXISTS_CODES:
                raise

    async def probe(self) -> bool:
        """Return whether the store answers for our bucket right now."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S), self._call():
                await self._health.head_bucket(Bucket=self._settings.bucket)
        except (StoreUnavailableError, ObjectMissingError, TimeoutError, ClientError):
            return False
        return True

    async def probe_work(self) -> bool:
        """Return whether the store takes an object and gives it back: one that starts or is full may only answer."""
        bucket = self._settings.bucket
        try:
            # As long as for any call of the work: a store that is slow but works is not away.
            async with self._call():
                await self._health.put_object(Bucket=bucket, Key=PROBE_KEY, Body=PROBE_BODY)
            async with self._call():
                answer = await self._health.get_object(Bucket=bucket, Key=PROBE_KEY)
                async with answer["Body"] as stream:
                    return bool(await stream.read() == PROBE_BODY)
        except (StoreUnavailableError, ObjectMissingError, ClientError):
            return False

    async def put(self, key: str, body: bytes | Part, *, media_type: str) -> None:
        """Write an object whole."""
        client = self._part_client if isinstance(body, Part) else self._client
        async with self._call():
            await client.put_object(Bucket=self._settings.bucket, Key=key, Body=body, ContentType=media_type)

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        """Return an object's bytes.

        Raises:
            ObjectMissingError: there is none.
            ObjectTooLargeError: it is larger than `bytes_max`.
        """
        async with self._call():
            answer = await self._client.get_object(Bucket=self._settings.bucket, Key=key)
            async with answer["Body"] as stream:
                if answer["ContentLength"] > bytes_max:
                    raise ObjectTooLargeError(key)
                body: bytes = await stream.read()
                return body

    async def head(self, key: str) -> ObjectInfo:
        """Return what is known of an object without its bytes.

        Raises:
            ObjectMissingError: there is none.
        """
        async with self._call():
            answer = await self._client.head_object(Bucket=self._settings.bucket, Key=key, ChecksumMode="ENABLED")
        checksum = answer.get("ChecksumSHA256")
        return ObjectInfo(
            size_bytes=answer["ContentLength"],
            etag=answer["ETag"],
            sha256=None if checksum is None else base64.b64decode(checksum).hex(),
        )

    async def stream(self, key: str, *, start: int = 0, length_bytes: int | None = None) -> AsyncGenerator[bytes]:
        """Yield an object's bytes from `start`, `length_bytes` of them or all, in chunks; close it to end it early.

        Each wait for the store is bounded on its own, so that a slow reader is no slow store.

        Raises:
            ObjectMissingError: there is none.
        """
        ranged = {} if not start and length_bytes is None else {"Range": _range(start, length_bytes)}
        async with self._call():
            answer = await self._client.get_object(Bucket=self._settings.bucket, Key=key, **ranged)
        body = answer["Body"]
        async with body:
            while True:
                async with self._call():
                    chunk: bytes = await body.read(CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk

    async def get_range(self, key: str, *, start: int, length_bytes: int) -> bytes:
        """Return up to `length_bytes` bytes of an object that is not empty, from `start`.

        Raises:
            ObjectMissingError: there is none.
        """
        async with self._call():
            answer = await self._client.get_object(
                Bucket=self._settings.bucket, Key=key, Range=_range(start, length_bytes)
            )
            async with answer["Body"] as body:
                found: bytes = await body.read()
        return found[:length_bytes]

    async def copy(self, source_key: str, key: str, *, media_type: str, if_match: str | None = None) -> None:
        """Copy inside the store; the bytes do not pass through this process.

        Raises:
            ObjectMissingError: there is no source.
            ObjectChangedError: the source's ETag is not `if_match`.
        """
        condition = {} if if_match is None else {"CopySourceIfMatch": if_match}
        async with self._call():
            await self._client.copy_object(
                Bucket=self._settings.bucket,
                Key=key,
                CopySource={"Bucket": self._settings.bucket, "Key": source_key},
                ContentType=media_type,
                MetadataDirective="REPLACE",
                **condition,
            )

    async def exists(self, key: str) -> bool:
        """Return whether an object is there."""
        try:
            await self.head(key)
        except ObjectMissingError:
            return False
        return True

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are fine."""
        for start in range(0, len(keys), DELETE_KEYS_MAX):
            objects = [{"Key": key} for key in keys[start : start + DELETE_KEYS_MAX]]
            async with self._call():
                answer = await self._client.delete_objects(
                    Bucket=self._settings.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            if answer.get("Errors"):
                raise StoreUnavailableError("some objects could not be deleted")

    async def start_multipart(self, key: str, *, media_type: str) -> str:
        """Begin a multipart upload and return its id."""
        async with self._call():
            answer = await self._client.create_multipart_upload(
                Bucket=self._settings.bucket, Key=key, ContentType=media_type
            )
        return str(answer["UploadId"])

    async def put_part(self, key: str, *, upload_id: str, number: int, body: Part) -> str:
        """Write one part (numbers from 1) and return its ETag."""
        async with self._call():
            answer = await self._part_client.upload_part(
                Bucket=self._settings.bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body
            )
        return str(answer["ETag"])

    async def finish_multipart(self, key: str, *, upload_id: str, etags: Sequence[str]) -> None:
        """Join the parts, in order, to one object."""
        parts = [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(etags, start=1)]
        async with self._call():
            await self._client.complete_multipart_upload(
                Bucket=self._settings.bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )

    async def abort_multipart(self, key: str, *, upload_id: str) -> None:
        """Give up one multipart upload; one that is not there is fine."""
        with suppress(ObjectMissingError):
            async with self._call():
                await self._client.abort_multipart_upload(Bucket=self._settings.bucket, Key=key, UploadId=upload_id)

    async def abort_multiparts_of(self, prefix: str) -> int:
        """Give up every unfinished multipart upload under a prefix; returns how many."""
        count = 0
        async for uploads in self.multipart_pages(prefix):
            for upload in uploads:
                await self.abort_multipart(upload.key, upload_id=upload.mark)
            count += len(uploads)
        return count

    async def presigned_get(self, key: str, *, expires_s: int) -> str:
        """Return a link on the public address that opens the object until it expires; no call is made."""
        return str(
            await self._public.generate_presigned_url(
                "get_object", Params={"Bucket": self._settings.bucket, "Key": key}, ExpiresIn=expires_s
            )
        )

    async def presigned_put(self, key: str, *, promise: SignedBody, expires_s: int) -> SignedPut:
        """Return a link that takes exactly the bytes described, until it expires; no call is made."""
        params = {"Bucket": self._settings.bucket, "Key": key, **promise.params()}
        url = await self._public.generate_presigned_url("put_object", Params=params, ExpiresIn=expires_s)
        return SignedPut(url=str(url), headers=promise.headers())

    async def _ask(self, operation: str, **query: object) -> Any:
        async with self._call():
            return await getattr(self._client, operation)(Bucket=self._settings.bucket, **query)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        # The client's own read timeout does not bound a PUT (it waits for "100 Continue" without one), so every
        # call has a deadline around it.
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                yield
            self._watch.answered()
        except ClientError as error:
            if _code(error) in _MISSING_CODES:
                raise ObjectMissingError(_code(error)) from error
            if _code(error) in _CHANGED_CODES:
                raise ObjectChangedError(_code(error)) from error
            if _code(error) in _EXISTS_CODES:
                raise
            # Also what only an operator can mend: a wrong key, a missing bucket. To a client it is our outage.
            self._watch.failed(error)
            raise StoreUnavailableError(f"the store refused: {_code(error)}") from error
        except (BotoCoreError, HTTPClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
            self._watch.failed(error)
            raise StoreSilentError("the store did not answer") from error


def _range(start: int, length_bytes: int | None) -> str:
    return f"bytes={start}-" if length_bytes is None else f"bytes={start}-{start + length_bytes - 1}"


def _client_config(settings: StoreSettings, *, connections: int, signs_bodies: bool) -> Config:
    plain_http = urlsplit(settings.endpoint_url).scheme == "http"
    return Config(
        # SigV2, the default of presigned links, does not sign the host.
        signature_version="s3v4",
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=settings.timeout_s,
        max_pool_connections=connections,
        retries={"mode": "standard", "total_max_attempts": 2},
        # Old stores keep the framing of trailing checksums inside the object; our own SHA-256 is compared instead.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path", "payload_signing_enabled": signs_bodies and plain_http},
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
