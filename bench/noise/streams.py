"""Records the moments of whole streams on this machine, quiet and beside spinning processes.

`python bench/noise/streams.py OUT.json GGUF STREAMS [the server's arguments]`: for each number of
spinning processes the real server answers the same question STREAMS times, cache off. Written are,
for every stream, the gaps between its pieces in tenths of a millisecond (the first counts from the
request), and what a verdict needs beside them.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from load import spinning

from pytest_llm_latency import sse
from pytest_llm_latency.evidence.timeline import Timeline
from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import free_port, guarded
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.stamps import measure_stamps

SPINNING = (0, 1, 2, 4)
MAX_TOKENS = 64
PIECES_AT_LEAST = 32  # a model of random weights may end at once


def row(timeline: Timeline) -> dict[str, Any]:
    """What is kept of a stream."""
    moments = [round(piece.t_ms * 10) for piece in timeline.pieces]
    return {
        "gaps": [b - a for a, b in zip([0, *moments], moments)],
        "total_ms": timeline.total_ms,
        "predicted_n": timeline.tokens,
        "predicted_ms": timeline.predicted_ms,
        "jitter_ms": timeline.jitter_ms,
        "cpu_wait_ms": timeline.cpu_wait_ms,
    }


def main() -> None:
    """Record all loads."""
    out, gguf, wanted = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        command = own_command("local", gguf, port, tuple(sys.argv[4:]))
        stack.enter_context(guarded(command, Path(directory) / "log", url, 120.0, lambda _: None))
        for count in SPINNING:
            rows: list[dict[str, Any]] = []
            with spinning(count):
                stamps = measure_stamps()
                client = Client(url, jitter_ms=stamps.jitter_ms if stamps is not None else 0.0)
                for _ in range(3 * wanted):
                    timeline = client.stream(sse.MESSAGES, MAX_TOKENS, False)
                    if timeline.error is None and len(timeline.pieces) >= PIECES_AT_LEAST:
                        rows.append(row(timeline))
                    if len(rows) == wanted:
                        break
            found[str(count)] = rows
            print(f"{count} spinning: {len(rows)} streams", file=sys.stderr)
            out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
