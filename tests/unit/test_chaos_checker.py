"""A checker that cannot fail is worthless: each promise is broken by hand, and the checker names it and no other."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contracts.images import VariantName
from contracts.keys import original_key, variant_key
from stack.chaos_history import (
    Books,
    Call,
    DeliveryRow,
    Exit,
    FaultSpan,
    History,
    JobRow,
    Picture,
    PointerRow,
    PointerStep,
    Settle,
    Step,
)
from stack.chaos_view import overlap_peak
from stack.checker import PROMISES, Invariant, judge

GOOD = Picture(sha256="aa" * 32, valid=True, variants={"crop.jpg": "cc" * 32})
BROKEN = Picture(sha256="bb" * 32, valid=False, failure="invalid_image")
LETTER = Picture(sha256="dd" * 32, valid=False, refused=True)
READY, FAILED = uuid.UUID(int=1), uuid.UUID(int=2)
IMAGE, OTHER_IMAGE = uuid.UUID(int=11), uuid.UUID(int=12)
CROP = variant_key(IMAGE, READY, "0" * 12, VariantName.CROP)


def step(at_s: float, job_id: uuid.UUID, before: str | None, after: str | None, *, token: int = 0) -> Step:
    ends = after in ("ready", "failed", "cancelled")
    return Step(
        at_s=at_s,
        job_id=job_id,
        state_before=before,
        state_after=after,
        claim_token=token,
        attempts_before=0,
        attempts_after=0,
        deaths=0,
        held_before=before is not None,
        held_after=not ends,
        admitted_s=1.0,
        released_s=at_s if ends else None,
        result_changed=ends,
    )


def life(job_id: uuid.UUID, end: str) -> tuple[Step, ...]:
    """The steps of a job that is claimed once."""
    return (
        step(1.0, job_id, None, "uploading"),
        step(2.0, job_id, "uploading", "queued"),
        step(3.0, job_id, "queued", "processing", token=1),
        step(4.0, job_id, "processing", end, token=1),
    )


def job(job_id: uuid.UUID, image_id: uuid.UUID, picture: Picture, *, state: str) -> JobRow:
    return JobRow(
        job_id=job_id,
        image_id=image_id,
        image_version=1,
        owner="ann",
        state=state,
        error_code=picture.failure or None,
        claim_token=1,
        attempts_spent=0,
        deaths=0,
        source_sha256=picture.sha256,
        holds_place=False,
        held_bytes=0,
        bytes_book="none",
        variants={CROP: "cc" * 32} if state == "ready" else {},
    )


def call(what: str, job_id: uuid.UUID, *, status: int = 202, begun_s: float = 1.0, **facts: str) -> Call:
    return Call(what=what, begun_s=begun_s, took_s=0.5, status=status, owner="ann", job_id=str(job_id), **facts)


BOOKS = Books(
    jobs_held=0,
    staging_bytes=0,
    failed_source_bytes=9,
    rows_held=0,
    rows_staging_bytes=0,
    rows_failed_source_bytes=9,
    owners_off=0,
)

#: One valid image that became ready, one broken one that failed, a store that was away in between.
KEPT = History(
    jobs_bound=2,
    load_ended_s=100.0,
    pictures=(GOOD, BROKEN, LETTER),
    calls=(
        call("upload", READY, key="k", state="queued"),
        call("upload", FAILED, state="queued"),
        call("read", READY, status=200, begun_s=5.0, state="ready"),
    ),
    steps=(*life(READY, "ready"), *life(FAILED, "failed")),
    pointer_steps=(PointerStep(image_id=IMAGE, version_before=0, version_after=1),),
    settles=(
        Settle(process="worker-1", at_s=4.0, job_id=READY, claim_token=1, state="ready"),
        Settle(process="worker-1", at_s=4.0, job_id=FAILED, claim_token=1, state="failed"),
    ),
    deliveries=(
        DeliveryRow(process="worker-1", session=1, tag=1, job_id=READY, delivered_s=2.5, acked_s=4.1),
        DeliveryRow(process="worker-1", session=1, tag=2, job_id=FAILED, delivered_s=2.5, acked_s=None, ended_s=4.2),
    ),
    jobs=(job(READY, IMAGE, GOOD, state="ready"), job(FAILED, OTHER_IMAGE, BROKEN, state="failed")),
    pointers=(
        PointerRow(image_id=IMAGE, ready_version=1, ready_job_id=READY),
        PointerRow(image_id=OTHER_IMAGE, ready_version=0, ready_job_id=None),
    ),
    books=BOOKS,
    objects={CROP: "cc" * 32, original_key(IMAGE): GOOD.sha256, "staging/x": BROKEN.sha256},
    faults=(FaultSpan(kind="kill-s3", action="kill", target="s3", begun_s=0.5, back_s=2.0, ended_s=2.2),),
)


def with_job(history: History, index: int, **changes: Any) -> History:
    jobs = list(history.jobs)
    jobs[index] = replace(jobs[index], **changes)
    return replace(history, jobs=tuple(jobs))


def with_step(history: History, *more: Step) -> History:
    return replace(history, steps=(*history.steps, *more))


def with_call(history: History, *more: Call) -> History:
    return replace(history, calls=(*history.calls, *more))


def attempt(at_s: float) -> Step:
    return replace(step(at_s, READY, "processing", "queued", token=1), attempts_after=1, result_changed=False)


OLD_SETTLE = Settle(process="worker-2", at_s=3.5, job_id=READY, claim_token=0, state="ready")
EARLY_ACK = replace(KEPT.deliveries[0], acked_s=3.5)
SECOND_COPY = replace(KEPT.deliveries[0], tag=3, delivered_s=3.2, acked_s=3.3)
AWAY = FaultSpan(kind="kill-s3", action="kill", target="s3", begun_s=1.0, back_s=9.0, ended_s=9.5)
LATE_END = FaultSpan(kind="kill-s3", action="kill", target="s3", begun_s=5.0, back_s=6.0, ended_s=7.0)
SECOND_JOB = uuid.UUID(int=3)
CANCELLED = with_job(KEPT, 0, state="cancelled", variants={})

BREAKS: dict[str, tuple[Invariant, Callable[[], History]]] = {
    "a promised job is gone": (
        Invariant.ACCEPTED_IS_FINAL,
        lambda: with_call(KEPT, call("upload", SECOND_JOB)),
    ),
    "a job is never finished": (
        Invariant.ACCEPTED_IS_FINAL,
        lambda: with_job(KEPT, 1, state="queued", error_code=None),
    ),
    "a valid image fails": (
        Invariant.VALID_IS_READY,
        lambda: replace(with_job(KEPT, 0, state="failed", variants={}, error_code="worker_lost"), objects={}),
    ),
    "a job is cancelled that nobody wanted cancelled": (
        Invariant.VALID_IS_READY,
        lambda: replace(CANCELLED, objects={}),
    ),
    "a broken image fails for another reason": (
        Invariant.INVALID_IS_FAILED,
        lambda: with_job(KEPT, 1, error_code="retries_exhausted"),
    ),
    "a letter becomes a job": (
        Invariant.INVALID_IS_FAILED,
        lambda: with_job(KEPT, 1, source_sha256=LETTER.sha256),
    ),
    "a job is made of nobody's file": (
        Invariant.INVALID_IS_FAILED,
        lambda: with_job(KEPT, 1, source_sha256="ee" * 32),
    ),
    "a job fails twice": (
        Invariant.ONE_EFFECT,
        lambda: with_step(KEPT, replace(step(6.0, FAILED, "processing", "failed", token=2), held_before=False)),
    ),
    "one key makes two jobs": (
        Invariant.ONE_EFFECT,
        lambda: with_call(KEPT, call("upload", FAILED, key="k")),
    ),
    "an old token settles": (
        Invariant.FENCED,
        lambda: replace(KEPT, settles=(*KEPT.settles, OLD_SETTLE)),
    ),
    "an ack leaves before the settle": (
        Invariant.ACKED_AFTER_SETTLE,
        lambda: replace(KEPT, deliveries=(EARLY_ACK, *KEPT.deliveries[1:])),
    ),
    "a ready job is queued again": (
        Invariant.READY_NEVER_UNDONE,
        lambda: with_step(
            KEPT, replace(step(6.0, READY, "ready", "queued", token=1), held_before=False, held_after=False)
        ),
    ),
    "a client sees a ready job in work": (
        Invariant.READY_NEVER_UNDONE,
        lambda: with_call(KEPT, call("read", READY, status=200, begun_s=6.0, state="processing")),
    ),
    "a pointer goes down": (
        Invariant.NEWER_NEVER_REPLACED,
        lambda: replace(KEPT, pointer_steps=(PointerStep(image_id=IMAGE, version_before=2, version_after=1),)),
    ),
    "a pointer does not move": (
        Invariant.NEWER_NEVER_REPLACED,
        lambda: replace(KEPT, pointers=(PointerRow(image_id=IMAGE, ready_version=0, ready_job_id=None),)),
    ),
    "three places are held where two may be": (
        Invariant.BOUND_HELD,
        lambda: with_step(KEPT, step(1.0, SECOND_JOB, None, "uploading")),
    ),
    "a place is given back twice": (
        Invariant.BOOKS_BALANCED,
        lambda: replace(KEPT, books=replace(BOOKS, jobs_held=-1)),
    ),
    "a final job keeps its place": (
        Invariant.BOOKS_BALANCED,
        lambda: with_job(KEPT, 0, holds_place=True),
    ),
    "a variant has other bytes": (
        Invariant.OUTPUTS_EQUAL,
        lambda: replace(KEPT, objects={**KEPT.objects, CROP: "ff" * 32}),
    ),
    "a variant is not there": (
        Invariant.OUTPUTS_EQUAL,
        lambda: replace(KEPT, objects={key: KEPT.objects[key] for key in KEPT.objects if key != CROP}),
    ),
    "the row promises other bytes": (
        Invariant.OUTPUTS_EQUAL,
        lambda: replace(with_job(KEPT, 0, variants={CROP: "ff" * 32}), objects={**KEPT.objects, CROP: "ff" * 32}),
    ),
    "an object belongs to nothing": (
        Invariant.OUTPUTS_EQUAL,
        lambda: replace(KEPT, objects={**KEPT.objects, original_key(OTHER_IMAGE): BROKEN.sha256}),
    ),
    "an attempt is spent while the store is away": (
        Invariant.OUTAGE_IS_NO_ATTEMPT,
        lambda: replace(with_step(KEPT, attempt(3.5)), faults=(AWAY,), load_ended_s=8.0),
    ),
    "an attempt is spent on nothing": (
        Invariant.OUTAGE_IS_NO_ATTEMPT,
        lambda: replace(with_step(KEPT, attempt(3.5)), faults=()),
    ),
    "a client is told of our insides": (
        Invariant.ANSWERED,
        lambda: with_call(KEPT, call("read", READY, status=500)),
    ),
    "a client waits for ever": (
        Invariant.ANSWERED,
        lambda: with_call(KEPT, replace(call("read", READY, status=200), took_s=31.0)),
    ),
    "a client hears nothing with no fault at the API": (
        Invariant.ANSWERED,
        lambda: with_call(KEPT, call("read", READY, status=0)),
    ),
    "nothing is settled after a fault": (
        Invariant.RECOVERED,
        lambda: replace(KEPT, faults=(LATE_END,)),
    ),
    "a worker ends by itself": (
        Invariant.NOBODY_DIED,
        lambda: replace(KEPT, exits=(Exit(process="worker-1", at_s=3.0, code=1),)),
    ),
}


def test_a_history_in_which_all_is_kept_is_judged_so() -> None:
    verdict = judge(KEPT)
    assert verdict.violations == ()
    counts = (verdict.accepted, verdict.ready, verdict.failed, verdict.cancelled, verdict.lost, verdict.faults)
    assert counts == (2, 1, 1, 0, 0, 1)
    assert verdict.overlap_peak == 2
    assert verdict.slowest_recovery_s == pytest.approx(1.8)


@pytest.mark.parametrize("what", BREAKS)
def test_each_broken_promise_is_named_and_no_other(what: str) -> None:
    invariant, history = BREAKS[what]
    verdict = judge(history())
    assert verdict.broken == {invariant}
    assert not verdict.holds


def test_every_promise_is_broken_above() -> None:
    assert {invariant for invariant, _ in BREAKS.values()} == set(PROMISES) == set(Invariant)


def test_a_run_in_which_nothing_became_ready_shows_nothing() -> None:
    came_to_nothing = judge(with_call(replace(CANCELLED, objects={}), call("cancel", READY)))
    assert (came_to_nothing.violations, came_to_nothing.ready) == ((), 0)
    assert not came_to_nothing.holds


def test_a_wish_to_cancel_a_replay_and_a_second_copy_break_nothing() -> None:
    wished = with_call(replace(CANCELLED, objects={}), call("cancel", READY))
    assert not judge(wished).violations
    again = (
        replace(step(5.0, FAILED, "failed", "queued"), held_before=False, admitted_s=5.0, result_changed=True),
        step(6.0, FAILED, "queued", "processing", token=2),
        step(7.0, FAILED, "processing", "failed", token=2),
    )
    assert judge(with_step(KEPT, *again)).holds
    assert judge(replace(KEPT, deliveries=(*KEPT.deliveries, SECOND_COPY))).holds


def test_silence_is_forgiven_while_the_api_is_away_and_an_attempt_after_a_cut_line() -> None:
    frozen = FaultSpan(kind="freeze-api", action="freeze", target="api", begun_s=0.5, back_s=1.2, ended_s=1.3)
    silent = with_call(KEPT, call("read", READY, status=0))
    assert judge(replace(silent, faults=(*KEPT.faults, frozen))).holds
    cut = FaultSpan(kind="cut-s3", action="cut", target="s3", begun_s=2.5, back_s=3.4, ended_s=3.4)
    assert judge(replace(with_step(KEPT, attempt(3.5)), faults=(cut,))).holds


def test_of_equal_stamps_the_release_comes_first() -> None:
    first = (step(1.0, READY, None, "uploading"), step(2.0, READY, "processing", "ready"))
    second = replace(step(2.0, FAILED, None, "uploading"), admitted_s=2.0)
    assert overlap_peak([*first, second]) == 1
