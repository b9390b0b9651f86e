from stack.launcher import BACKOFF_S_MAX, BACKOFF_S_MIN, SETTLED_S, Backoff


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_thing_that_keeps_ending_waits_longer_each_time_up_to_the_bound() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    waits = []
    for _ in range(10):
        backoff.started("x")
        clock.now_s += 1
        wait_s = backoff.ended("x")
        assert wait_s is not None
        waits.append(wait_s)
        clock.now_s += wait_s
    assert waits[:4] == [BACKOFF_S_MIN, 2 * BACKOFF_S_MIN, 4 * BACKOFF_S_MIN, 8 * BACKOFF_S_MIN]
    assert waits[-1] == BACKOFF_S_MAX


def test_an_end_is_news_once_and_due_after_its_wait() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    backoff.started("x")
    assert backoff.ended("x") == BACKOFF_S_MIN
    assert backoff.ended("x") is None
    assert not backoff.due("x")
    clock.now_s += BACKOFF_S_MIN
    assert backoff.due("x")
    backoff.started("x")
    assert not backoff.due("x")


def test_a_thing_that_has_lived_long_starts_with_the_shortest_wait_again() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(5):
        backoff.started("x")
        backoff.ended("x")
    backoff.started("x")
    clock.now_s += SETTLED_S
    assert backoff.ended("x") == BACKOFF_S_MIN
