"""The defence of the whole: an attachment accepted with no worker there outlives restarts and becomes ready."""

import asyncio
import hashlib
import io

from PIL import Image

from stack.servers import Servers
from tests.attached import MESSAGES, PHOTO, open_desk
from tests.line import Line


async def test_an_attachment_of_a_message_outlives_api_and_broker_and_becomes_ready(
    line: Line, servers: Servers
) -> None:
    assert servers.rabbit is not None
    api, _, _, worker = await line.start("api", "relay", "janitor", "worker")
    await asyncio.to_thread(worker.stop)
    async with open_desk(line) as desk:
        sent = await desk.queued()
        message_id = await desk.message(sent, text="with an attachment")
        early = await desk.get(f"{sent.path}/content")
        assert (early.status_code, early.json()["code"]) == (409, "not_ready")
        assert (await desk.get(f"{sent.path}/content/thumbnail")).status_code == 409
        await desk.message(text="other messages go on")

        await line.wait_published([sent.job_id])
        await asyncio.to_thread(api.stop)
        await asyncio.to_thread(servers.rabbit.restart)
        await line.start_named("api", name="api-again")
        line.base_url = line.roles.processes[-1].url
        (waiting,) = (await desk.get(f"{MESSAGES}/{message_id}")).json()["attachments"]
        assert (waiting["attachment_id"], waiting["status"]) == (sent.attachment_id, "queued")

        again = await line.start_named("worker", name="worker-again")
        line.sources[sent.job_id] = PHOTO
        await line.wait_ready([sent.job_id])
        await line.assert_equal_to_a_single_run([sent.job_id])
        (shown,) = (await desk.get(f"{MESSAGES}/{message_id}")).json()["attachments"]
        assert shown["status"] == "ready"
        await asyncio.to_thread(again.stop)
        await asyncio.to_thread(servers.rabbit.kill)
        # Everything is read with workers and broker away.
        assert (await desk.get(shown["original"]["url"])).content == PHOTO
        for name, variant in shown["variants"].items():
            content = (await desk.get(variant["url"])).content
            assert hashlib.sha256(content).hexdigest() == variant["sha256"], name
            assert len(content) == variant["bytes"]
        thumbnail = await desk.get(shown["variants"]["thumbnail"]["url"])
        assert thumbnail.headers["content-type"] == "image/jpeg"
        image = Image.open(io.BytesIO(thumbnail.content))
        image.load()
        assert (image.format, max(image.size)) == ("JPEG", 256)
