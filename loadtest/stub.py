"""A server that does nothing: reads each upload and answers 202. For calibrating the generator and for freezing.

Invariant: it is never the bottleneck, so what a run against it shows is the generator alone.
"""

import asyncio
import json
import uuid

_BACKLOG = 2048  # a frozen stub must still take every new connection, or the kernel's retries would colour the test
_HEADER_BYTES_MAX = 64 * 1024


async def _serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(length)
            body = json.dumps({"job_id": str(uuid.uuid4()), "status": "queued"}).encode()
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_serve_connection, "127.0.0.1", 0, backlog=_BACKLOG, limit=_HEADER_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the parent reads the port from here
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
