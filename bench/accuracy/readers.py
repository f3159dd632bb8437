"""One reader of a stream, in a process of its own: `python readers.py NAME PORT SHAPE_NUMBER`.

Prints JSON: the delay of every piece from the emitter's write to the reader's stamp, the error
of its TTFT, CPU time a piece, peak memory, and what was lost or misordered. Each reader stamps
as its users do: where its API hands over an event. All parse the JSON of every event.
"""

from __future__ import annotations

import gc
import http.client
import json
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from emitter import SHAPES, stay_on

if TYPE_CHECKING:
    from pytest_llm_latency.evidence.recording import Recording

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 64, "stream": True}
HEADERS = {"Content-Type": "application/json"}
WARM_UPS = 8
# (when the request went out, [(stamp, the event's data)])
Seen = tuple[float, list[tuple[float, str]]]


def recv_loop(port: int, path: str) -> Seen:
    """The limit: a bare socket; stamps each return of recv, splits afterwards."""
    body = json.dumps(BODY).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    request = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    clock, recv = time.perf_counter, connection.recv
    reads = []
    gc.disable()
    started = clock()
    connection.sendall(request)
    while True:
        data = recv(65536)
        now = clock()
        if not data:
            break
        reads.append((now, data))
    gc.enable()
    found = []
    rest = b""
    for now, data in reads:
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        found += [(now, line[6:].decode()) for line in lines if line.startswith(b"data: {")]
    return started, found


def ours(port: int, path: str) -> Seen:
    """This project's client, as every step of the lab uses it."""
    return _ours(port, path, None)


def ours_with_evidence(port: int, path: str) -> Seen:
    """The same, its recording written to disk as a run does."""
    from pytest_llm_latency.evidence.run_directory import RunDirectory

    with tempfile.TemporaryDirectory() as directory:
        run = RunDirectory(Path(directory), {})
        return _ours(port, path, run.keep)


def _ours(port: int, path: str, keep: Callable[[Recording], None] | None) -> Seen:
    from pytest_llm_latency import sse
    from pytest_llm_latency.wire.client import Client
    from pytest_llm_latency.wire.dialect import Dialect
    from pytest_llm_latency.wire.exchange import Exchange

    sse.CHAT = path
    client = Client(f"http://127.0.0.1:{port}", dialect=Dialect(api_path=""), keep=keep)
    exchange = Exchange(client, "own/1")
    recording = exchange.run(BODY)
    started = exchange.started_at
    return started, [
        (started + t_ms / 1000.0, event.data)
        for t_ms, event in sse.timed_events(recording.reads)
        if event.data != sse.DONE
    ]


def http_client(port: int, path: str) -> Seen:
    """http.client, line by line."""
    clock = time.perf_counter
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found = []
    started = clock()
    connection.request("POST", path, json.dumps(BODY), HEADERS)
    for line in connection.getresponse():
        now = clock()
        if line.startswith(b"data: {"):
            found.append((now, line[6:].decode()))
    return started, found


def requests_iter_lines(port: int, path: str) -> Seen:
    """requests, iter_lines with its default of 512 bytes a read."""
    import requests

    clock = time.perf_counter
    found = []
    started = clock()
    with requests.post(f"http://127.0.0.1:{port}{path}", json=BODY, stream=True) as response:
        for line in response.iter_lines():
            now = clock()
            if line.startswith(b"data: {"):
                found.append((now, line[6:].decode()))
    return started, found


def httpx_sse(port: int, path: str) -> Seen:
    """httpx with httpx-sse."""
    import httpx
    from httpx_sse import connect_sse

    clock = time.perf_counter
    found = []
    with httpx.Client() as client:
        started = clock()
        with connect_sse(client, "POST", f"http://127.0.0.1:{port}{path}", json=BODY) as source:
            for event in source.iter_sse():
                now = clock()
                if event.data != "[DONE]":
                    found.append((now, event.data))
    return started, found


def openai_sdk(port: int, path: str) -> Seen:
    """The openai SDK; the path's number goes before /chat/completions."""
    import openai

    clock = time.perf_counter
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}{path}", api_key="x", max_retries=0)
    found = []
    started = clock()
    stream = client.chat.completions.create(
        model="m", messages=BODY["messages"], max_tokens=64, stream=True  # type: ignore[arg-type]
    )  # fmt: skip
    for chunk in stream:
        found.append((clock(), chunk))
    return started, [(now, chunk.model_dump_json()) for now, chunk in found]


def aiohttp_lines(port: int, path: str) -> Seen:
    """aiohttp, line by line."""
    import asyncio

    import aiohttp

    async def read() -> Seen:
        clock = time.perf_counter
        found = []
        async with aiohttp.ClientSession() as session:
            started = clock()
            async with session.post(f"http://127.0.0.1:{port}{path}", json=BODY) as response:
                async for line in response.content:
                    now = clock()
                    if line.startswith(b"data: {"):
                        found.append((now, line[6:].decode()))
        return started, found

    return asyncio.run(read())


READERS: dict[str, Callable[[int, str], Seen]] = {
    "recv loop": recv_loop,
    "recv loop, again": recv_loop,
    "ours": ours,
    "ours, with evidence": ours_with_evidence,
    "http.client": http_client,
    "requests iter_lines": requests_iter_lines,
    "httpx-sse": httpx_sse,
    "aiohttp": aiohttp_lines,
    "openai SDK": openai_sdk,
}


def main() -> None:
    """Read a few times to warm up (imports, first use), then measure."""
    name, port, number = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    reader = READERS[name]
    stay_on(-1)
    for _ in range(WARM_UPS):
        reader(port, f"/{len(SHAPES)}")
    gc.collect()
    cpu = time.process_time()
    started, found = reader(port, f"/{number}")
    values = [(stamp, json.loads(data)) for stamp, data in found]
    cpu = time.process_time() - cpu
    asked = next(value["asked"] for _, value in values if "asked" in value)
    pieces = [(stamp, value) for stamp, value in values if value["choices"]]
    numbers = [int(value["choices"][0]["delta"]["content"]) for _, value in pieces]
    print(
        json.dumps(
            {
                "delays_ms": [(stamp - value["at"]) * 1000.0 for stamp, value in pieces],
                "ttft_error_ms": (
                    (pieces[0][0] - started) - (pieces[0][1]["at"] - asked)
                ) * 1000.0,
                "cpu_us_a_piece": cpu * 1e6 / len(pieces),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
                "pieces": len(pieces),
                "in_order": numbers == list(range(len(numbers))),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
