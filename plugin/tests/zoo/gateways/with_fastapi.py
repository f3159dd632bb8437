"""A gateway of FastAPI and httpx, as people write them: `with_fastapi.py PORT UPSTREAM WAY`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask
from starlette.middleware.base import RequestResponseEndpoint

port, upstream, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
client = httpx.AsyncClient(base_url=upstream, timeout=None)
blocking = httpx.Client(base_url=upstream, timeout=None)


async def streams(request: Request) -> Response:
    """Hands the answer on as it comes."""
    answer = await client.send(await _copy(client, request), stream=True)
    return StreamingResponse(
        answer.aiter_raw(), answer.status_code, _type(answer), background=BackgroundTask(answer.aclose)
    )  # fmt: skip


async def looks_first(request: Request) -> Response:
    """Waits for the first chunk before it answers, to turn an error in it into a status."""
    answer = await client.send(await _copy(client, request), stream=True)
    chunks = answer.aiter_raw()
    first = await anext(chunks, b"")

    async def everything() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await answer.aclose()

    return StreamingResponse(everything(), answer.status_code, _type(answer))


async def whole(request: Request) -> Response:
    """Reads the whole answer, then sends it."""
    answer = await client.send(await _copy(client, request))
    return Response(answer.content, answer.status_code, _type(answer))


async def in_threads(request: Request) -> Response:
    """Streams by a blocking client, in a thread: what waits in a thread cannot be cancelled."""
    copy = await _copy(blocking, request)
    answer = await run_in_threadpool(blocking.send, copy, stream=True)

    def chunks() -> Iterator[bytes]:
        with closing(answer):
            yield from answer.iter_raw()

    return StreamingResponse(chunks(), answer.status_code, _type(answer))


async def in_a_task(request: Request) -> Response:
    """A task of its own fetches the answer and fills a queue; it outlives the one who listens
    (Nayjest/lm-proxy#88)."""
    answer = await client.send(await _copy(client, request), stream=True)
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def fetch() -> None:
        async for chunk in answer.aiter_raw():
            await queue.put(chunk)
        await queue.put(b"")

    async def chunks() -> AsyncIterator[bytes]:
        task = asyncio.create_task(fetch())
        while chunk := await queue.get():
            yield chunk
        await task

    return StreamingResponse(chunks(), answer.status_code, _type(answer))


async def _copy(by: httpx.AsyncClient | httpx.Client, request: Request) -> httpx.Request:
    body = await request.body()
    return by.build_request(
        request.method, request.url.path, content=body, headers={"Content-Type": "application/json"}
    )


def _type(answer: httpx.Response) -> dict[str, str]:
    return {"Content-Type": answer.headers["Content-Type"]}


WAYS: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "streams": streams,
    "looks-first": looks_first,
    "whole": whole,
    "in-threads": in_threads,
    "in-a-task": in_a_task,
    "middleware": streams,
}


async def log(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """What tutorials add to an app: from behind it the disconnect may not be seen
    (1rgs/claude-code-proxy#114)."""
    response = await call_next(request)
    print(request.method, request.url.path, response.status_code)
    return response


if __name__ == "__main__":
    app = FastAPI()
    app.add_route("/{path:path}", WAYS[way], methods=["GET", "POST"])
    if way == "middleware":
        app.middleware("http")(log)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
