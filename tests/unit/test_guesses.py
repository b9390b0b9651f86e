"""Failed authentications are counted by address, within bounds."""

import pytest

from app.api.guesses import ADDRESSES_MAX, WINDOW_S, Guesses, address_of
from contracts.errors import ErrorCode


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_address_is_told_to_wait_for_the_rest_of_its_minute() -> None:
    clock = Clock()
    guesses = Guesses(failures_max=3, monotonic_s=clock)
    for _ in range(3):
        assert guesses.refusal("a") is None
        guesses.note("a")
    clock.now_s += 20
    refusal = guesses.refusal("a")
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (ErrorCode.RATE_LIMITED, WINDOW_S - 20)
    assert guesses.refusal("b") is None
    clock.now_s += WINDOW_S - 20
    assert guesses.refusal("a") is None
    guesses.note("a")
    assert guesses.refusal("a") is None


def test_the_table_is_bounded_and_the_oldest_address_goes_first() -> None:
    guesses = Guesses(failures_max=1, monotonic_s=Clock())
    for number in range(ADDRESSES_MAX + 1):
        guesses.note(str(number))
    assert guesses.refusal("0") is None
    assert guesses.refusal("1") is not None
    assert guesses.refusal(str(ADDRESSES_MAX)) is not None


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 1), "2001:db8:1:2::/64"),
        (("/a/socket", 0), "/a/socket"),
        (None, ""),
    ],
)
def test_an_ipv6_client_is_its_whole_network(client: tuple[str, int] | None, address: str) -> None:
    assert address_of({"client": client}) == address
