"""Records how the same request's TTFT varies on this machine, quiet and busy.

`python bench/noise/record.py OUT.json [GGUF]`: for each kind of load the real server answers one
uncached request again and again; written are the times as factors of the quiet median, in the
order in which they were measured, so that their spells stay.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from load import busy

from pytest_llm_latency import sse
from pytest_llm_latency.kb import read
from pytest_llm_latency.plan import Plan
from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import free_port, guarded
from pytest_llm_latency.wire.client import Client

SECONDS = 75.0
QUIET_SECONDS = 10.0
LOADS = {
    "one process a core": {"per_core": 1},
    "two processes a core": {"per_core": 2},
    "two a core in spells of 2 to 10 s": {"per_core": 2, "spells_s": (2.0, 10.0)},
    "two a core in spells of 10 to 30 s": {"per_core": 2, "spells_s": (10.0, 30.0)},
}


def series(client: Client, messages: list[dict[str, str]], seconds: float) -> list[float]:
    """TTFT (ms) of the same request, again and again."""
    found = []
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        ttft_ms = client.stream(messages, 4, False).ttft_ms
        if ttft_ms is not None:  # a model of random weights may end at once
            found.append(ttft_ms)
    return found


def main() -> None:
    """Record all loads."""
    out, gguf = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    kb = Path(__file__).parents[2] / "test_llm_latency" / "kb"
    messages = Plan().with_documents(read(kb, "kb")[:2])
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        command = own_command("local", gguf, port, ())
        stack.enter_context(guarded(command, Path(directory) / "log", url, 120.0, lambda _: None))
        client = Client(url)
        series(client, sse.MESSAGES, 2.0)
        quiet_ms = series(client, messages, QUIET_SECONDS)
        base_ms = statistics.median(quiet_ms)
        found["quiet"] = quiet_ms
        for name, load in LOADS.items():
            with busy(**load):  # type: ignore[arg-type]
                found[name] = series(client, messages, SECONDS)
            print(f"{name}: {len(found[name])} requests", file=sys.stderr)
    factors = {name: [round(ms / base_ms, 4) for ms in values] for name, values in found.items()}
    out.write_text(json.dumps({"quiet_median_ms": round(base_ms, 1), "factors": factors}) + "\n")


if __name__ == "__main__":
    main()
