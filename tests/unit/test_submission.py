"""What the client waits for, and what ends a job for it."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.submission import (
    PAUSE_JITTER,
    POLL_PAUSES_S,
    RETRY_AFTER_S_MAX,
    Ending,
    clashing_names,
    no_earlier_s,
    poll_pauses_s,
    retry_after_s,
    saved_as,
    seen,
)


@given(st.randoms(use_true_random=False))
def test_own_pauses_grow_to_fifteen_seconds_and_no_further(rng: random.Random) -> None:
    pauses_s = list(itertools.islice(poll_pauses_s(POLL_PAUSES_S, rng), 9))
    for pause_s, most_s in zip(pauses_s, [3, 5, 8, *[15] * 6], strict=True):
        assert most_s * (1 - PAUSE_JITTER) <= pause_s <= most_s


def test_two_clients_do_not_keep_step() -> None:
    first, second = (list(itertools.islice(poll_pauses_s(POLL_PAUSES_S, random.SystemRandom()), 9)) for _ in "ab")
    assert first != second


@given(st.randoms(use_true_random=False), st.floats(min_value=0, max_value=100))
def test_a_wait_that_was_asked_for_is_never_shortened(rng: random.Random, told_s: float) -> None:
    assert told_s <= no_earlier_s(told_s, rng) <= told_s * (1 + PAUSE_JITTER)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [("3", 3.0), ("0", 0.0), ("999999", RETRY_AFTER_S_MAX), ("", None), ("-1", None), ("soon", None), ("٣", None)],
)
def test_only_digits_are_a_retry_after(value: str, wait_s: float | None) -> None:
    assert retry_after_s(value) == wait_s


@pytest.mark.parametrize("status", ["queued", "processing", "cancelling", "polishing", "", None])
def test_a_state_that_is_not_known_to_be_final_is_not(status: str | None) -> None:
    assert "ending" not in seen({"status": status})


def test_a_failed_job_ends_with_its_code() -> None:
    job = {"status": "failed", "error": {"code": "invalid_image", "message": "No."}}
    assert seen(job) == {"job": job, "ending": Ending.FAILED, "code": "invalid_image", "message": "No."}


def test_results_are_named_after_their_file() -> None:
    assert saved_as(Path("out"), Path("in/photo.jpg"), "thumbnail") == Path("out/photo.thumbnail.jpg")
    assert saved_as(Path("out"), Path("in/photo.jpg"), "poster") == Path("out/photo.poster")


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "x\x00", ".."])
def test_no_name_of_a_server_leaves_the_folder(name: str) -> None:
    with pytest.raises(ValueError, match="is called"):
        saved_as(Path("out"), Path("photo.jpg"), name)


def test_files_whose_results_would_be_saved_over_each_other_are_found() -> None:
    assert clashing_names([Path("a/x.jpg"), Path("b/x.png"), Path("b/y.png")]) == {"x"}
