"""What proxies do to a stream and to a close, told by the server's CPU time and log alone.

`python bench/proxies/truth.py [--rounds N] [--only NAME]`, in the tests' environment, on Linux. It
shares the proxies' configurations with the zoo, and nothing of how the suite measures or judges: a
bare socket reads, nothing is asked of the server while it is watched (an answer of `/slots` delays
its look at the client), and a close has arrived when the server's processor time stands still.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "plugin" / "tests"), str(ROOT / "plugin" / "tests" / "zoo")]

import proxy_settings  # noqa: E402
import tiny_model  # noqa: E402
from proxies import running  # noqa: E402

from pytest_llm_latency import kb  # noqa: E402
from pytest_llm_latency.errors import ServerError  # noqa: E402
from pytest_llm_latency.servers.own_command import own_command  # noqa: E402
from pytest_llm_latency.servers.process import environment, free_port  # noqa: E402
from pytest_llm_latency.wire.client import Client  # noqa: E402

PIECE = re.compile(rb'"content": ?"[^"]')
TICK_MS = 1000.0 / os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.1
BUSY_SHARE = 0.15  # of a core
QUIET_S = 1.0  # idle is what is followed by so much rest
DEADLINE_S = 40.0
CLOSE_AFTER_S = {"generation": 0.8, "prefill": 0.5}
QUESTION = [{"role": "user", "content": "List the numbers from 1 to 300, separated by commas."}]


@dataclass(frozen=True)
class Server:
    """The real server, with nothing between."""

    url: str
    pid: int
    log: Path

    def cpu_ms(self) -> float:
        """User and system time of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_MS

    def busy_for_ms(self, since: float) -> float:
        """Wait until it rests; when it last worked, from `since` (perf_counter)."""
        last, before = since, self.cpu_ms()
        sampled = time.perf_counter()
        while time.perf_counter() - last < QUIET_S and time.perf_counter() - since < DEADLINE_S:
            time.sleep(SAMPLE_S)
            now, spent = time.perf_counter(), self.cpu_ms()
            if spent - before >= BUSY_SHARE * (now - sampled) * 1000.0:
                last = now
            sampled, before = now, spent
        return (last - since) * 1000.0


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """The zoo's slow server, with batches of 128 tokens: at the end of one it can stop."""
    gguf = tiny_model.write(directory / "zoo.gguf", layers=8, width=896, heads=14)
    port, log = free_port(), directory / "server.log"
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        command = own_command("local", gguf, port, ("-t", "1", "-b", "128"))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment()
        )
    try:
        while process.poll() is None:
            with contextlib.suppress(ServerError):
                if Client(url).get("/health", timeout_s=2.0).status == 200:
                    break
            time.sleep(0.1)
        assert process.poll() is None, log.read_text()
        yield Server(url, process.pid, log)
    finally:
        process.terminate()
        process.wait(10)


def opened(url: str, messages: Sequence[dict[str, str]], max_tokens: int) -> socket.socket:
    """A connection on which a streamed answer was asked for."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps(
        {"messages": messages, "max_tokens": max_tokens, "stream": True, "cache_prompt": False}
    ).encode()
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % (f"{host}:{port}".encode(), len(body)) + body
    )
    return connection


@dataclass(frozen=True)
class Read:
    """A whole answer: its pieces, the reads that brought any, the most pieces in one read, and
    how far into the time of the answer the first came."""

    pieces: int
    reads: int
    most: int
    first_share: float
    total_ms: float


def read_whole(url: str, tokens: int = 120) -> Read:
    """Read an answer to its end, as it comes."""
    begun = time.perf_counter()
    data, ends, moments = b"", [], []
    with opened(url, QUESTION, tokens) as connection:
        connection.settimeout(DEADLINE_S)
        while b"data: [DONE]" not in data and (more := connection.recv(65536)):
            data += more
            ends.append(len(data))
            moments.append(time.perf_counter() - begun)
    bringing = [0] * len(ends)
    for match in PIECE.finditer(data):
        bringing[next(i for i, end in enumerate(ends) if match.end() <= end)] += 1
    if not any(bringing):
        raise SystemExit(f"no text from {url}: {data[:300]!r}")
    first = next(moment for moment, pieces in zip(moments, bringing) if pieces)
    return Read(
        sum(bringing), sum(map(bool, bringing)), max(bringing), first / moments[-1],
        moments[-1] * 1000.0,
    )  # fmt: skip


@dataclass(frozen=True)
class Closed:
    """What became of a close."""

    busy_ms: float
    logged: bool


def close(
    server: Server,
    url: str,
    phase: str,
    messages: Sequence[dict[str, str]],
    closing: bool = True,
) -> Closed:
    """Read until the moment of the close, close, and watch the server. Not `closing`: watch it
    from that moment on, to know how long it works for a reader who stays."""
    size = server.log.stat().st_size
    connection = opened(url, messages, 400 if phase == "generation" else 8)
    deadline = time.perf_counter() + CLOSE_AFTER_S[phase]
    while (left := deadline - time.perf_counter()) > 0:
        connection.settimeout(left)
        with contextlib.suppress(TimeoutError):
            if not connection.recv(65536):
                break
    if closing:
        connection.close()
    busy_ms = server.busy_for_ms(time.perf_counter())
    connection.close()
    return Closed(busy_ms, b"cancel task" in server.log.read_bytes()[size:])


def row(server: Server, url: str, rounds: int) -> str:
    """A line of the table's figures; each close beside a request that is not closed."""
    documents = "\n\n".join(kb.read(ROOT / "test_llm_latency" / "kb", "the documents")[:3])
    long = [{"role": "system", "content": documents}, *QUESTION]
    reads = [read_whole(url) for _ in range(rounds)]
    cells = [
        f"{statistics.median(r.reads for r in reads):g} for {reads[0].pieces}, at most "
        f"{max(r.most for r in reads)}",
        f"{statistics.median(r.first_share for r in reads):.0%}",
    ]
    for phase, messages in (("generation", QUESTION), ("prefill", long)):
        spans, logged = [], 0
        for _ in range(rounds):
            whole = close(server, server.url, phase, messages, closing=False)
            one = close(server, url, phase, messages)
            spans.append(f"{one.busy_ms:,.0f} of {whole.busy_ms:,.0f}")
            logged += one.logged
        cells += [", ".join(spans), f"{logged} of {rounds}"]
    return " | ".join(cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as base, serving(Path(base)) as server:
        print("| proxy | setting | reads with text | first text at, of the whole | "
              "close in generation: at work for, ms, of what it takes for a reader who stays | "
              "cancel line | close in prefill: at work for, ms | "
              "cancel line |\n|" + "---|" * 8)  # fmt: skip
        print(f"| directly | | {row(server, server.url, options.rounds)} |", flush=True)
        for setting in proxy_settings.SETTINGS:
            program = setting.program
            if options.only.lower() not in f"{program.name}, {setting.name}".lower():
                continue
            if program.executable() is None:
                print(f"| {program.name} | not here: {program.how_to_install()} |")
                continue
            directory = Path(tempfile.mkdtemp(dir=base))
            directory.chmod(0o755)
            with running(program, setting.settings, directory, server.url) as url:
                figures = row(server, url, options.rounds)
            named = f"{program.name} {program.version_words()}"
            print(f"| {named} | {setting.name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
