"""An upload whose reservation is lost ends while its bytes come, and is left alone after that."""

import asyncio
import uuid

import pytest

from app.core.jobstore import Reservation
from app.uploads import Hand


def hand() -> Hand:
    job_id, image_id, upload_token = (uuid.uuid4() for _ in range(3))
    return Hand(Reservation(job_id=job_id, image_id=image_id, owner="someone", upload_token=upload_token, held_bytes=1))


async def receive(upload: Hand, *, losses: int) -> None:
    async with asyncio.timeout(60.0) as scope:
        with upload.ended_by(scope):
            for _ in range(losses):
                upload.lose()
            await asyncio.sleep(60.0 if losses else 0.0)


async def test_a_loss_ends_the_upload_however_often_it_is_told() -> None:
    lost = hand()
    with pytest.raises(TimeoutError):
        await receive(lost, losses=2)
    assert lost.lost


async def test_a_loss_after_the_bytes_are_in_ends_nothing() -> None:
    """The row decides then; the loop that renews the others' leases must go on."""
    late = hand()
    await receive(late, losses=0)
    late.lose()
    assert late.lost
