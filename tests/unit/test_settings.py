"""Settings that cannot hold together end the start with the names of the variables."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from app.core.settings import LIFETIME_S_MAX, Settings

LAST_MOMENT = datetime(2200, 1, 1, tzinfo=UTC)
DURATIONS = [name for name in Settings.model_fields if name.endswith(("_s", "_s_max"))]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"key_lifetime_s": 100.0, "cancelled_keep_s": 99.0}, ["SPILLWAY_KEY_LIFETIME_S"]),
        ({"key_lifetime_s": 100.0, "failed_keep_s": 99.0}, ["SPILLWAY_KEY_LIFETIME_S"]),
        ({"key_lifetime_s": 100.0, "ready_keep_s": 99.0}, ["SPILLWAY_KEY_LIFETIME_S"]),
        ({"result_link_s": 300, "result_link_window_s": 300}, ["RESULT_LINK_WINDOW_S", "SPILLWAY_RESULT_LINK_S"]),
        ({"worker_concurrency": 3, "worker_prefetch": 2}, ["SPILLWAY_WORKER_PREFETCH", "SPILLWAY_WORKER_CONCURRENCY"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(values: dict[str, float], names: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(values)
    assert all(name in str(caught.value) for name in names)


def test_a_key_may_live_exactly_as_long_as_its_job_is_kept() -> None:
    assert Settings.model_validate({"key_lifetime_s": 99.0, "cancelled_keep_s": 99.0}).key_lifetime_s == 99.0


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", ["1e12", "inf", "nan"])
def test_every_duration_has_an_end(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings.model_validate({name: value})


def test_the_longest_lifetime_fits_behind_any_moment_of_today() -> None:
    assert len(DURATIONS) > 30
    assert LAST_MOMENT + 2 * timedelta(seconds=LIFETIME_S_MAX) < datetime.max.replace(tzinfo=UTC)
