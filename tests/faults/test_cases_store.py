"""What others met with the store, tried on this line: a source that is gone, or is not the one that was accepted."""

import pytest

from contracts.keys import original_key, staging_key
from tests.line import Line, photo


@pytest.mark.parametrize("swapped", [False, True], ids=["gone", "another file"])
async def test_a_source_that_is_not_what_was_accepted_ends_its_job_at_once(line: Line, *, swapped: bool) -> None:
    await line.start("api", "relay", "janitor")
    lost, good = await line.accepted([1, 2])
    if swapped:
        await line.objects.put(staging_key(lost), photo(3), media_type="image/jpeg")
    else:
        await line.objects.delete([staging_key(lost)])
    await line.start("worker")
    row = await line.wait_state(lost, "failed")
    assert (row["error_code"], row["claim_token"], row["attempts_spent"]) == ("source_missing", 1, 0)
    assert not await line.objects.exists(original_key(row["image_id"]))
    await line.wait_ready([good])
    await line.assert_equal_to_a_single_run([good])
