"""A process keeps no more connections open than its limit on open files allows beside its own."""

import sys

import pytest

from app.api.open_files import CONNECTIONS_MAX, REFUSALS_MAX, room_of
from app.core.settings import Settings

SETTINGS = Settings(database_pool_connections_max=16, s3_connections_max=64)
GREEDY = Settings(database_pool_connections_max=200, s3_connections_max=1000)


@pytest.mark.parametrize("settings", [SETTINGS, GREEDY])
@pytest.mark.parametrize("files", [64, 256, 1024, 4096, 8192, 20_000, sys.maxsize])
def test_connections_those_turned_away_and_what_servers_need_fit_into_the_limit(settings: Settings, files: int) -> None:
    room = room_of(settings, files_max=files)
    to_servers = settings.database_pool_connections_max + 2 * settings.s3_connections_max
    assert room.connections_max + room.refusals_max + min(to_servers, files // 2) <= files
    assert 0 < room.connections_max <= CONNECTIONS_MAX
    assert 0 < room.refusals_max <= REFUSALS_MAX


def test_where_the_limit_allows_it_nothing_is_cut() -> None:
    room = room_of(SETTINGS, files_max=20_000)
    assert (room.connections_max, room.refusals_max) == (CONNECTIONS_MAX, REFUSALS_MAX)


def test_the_usual_limit_leaves_about_half_for_clients() -> None:
    assert 400 < room_of(SETTINGS, files_max=1024).connections_max < 700
