"""How fast is the page of a long answer made and opened?

Writes a run whose answer has 10,000 pieces, makes its page, opens it in headless Chromium five
times, and prints as JSON: seconds to make it, its bytes, and the median of the milliseconds until
it was loaded and all charts were drawn. Needs the extras `report` and `browser`, and Chromium.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from playwright.sync_api import sync_playwright

from pytest_llm_latency import sse
from pytest_llm_latency.evidence.artifacts import CHUNKS
from pytest_llm_latency.evidence.recording import End, Recording, Request
from pytest_llm_latency.evidence.run_directory import RunDirectory
from pytest_llm_latency.report import page
from pytest_llm_latency.steps.sse.result import sse_result

PIECES = 10_000
BEAT_MS = 2.5
OPENED = 5
MAX_BYTES = 1 << 28


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def recording() -> Recording:
    """An answer as llama-server frames it, a piece a read."""
    reads = []
    for number in range(PIECES):
        delta = {"choices": [{"index": 0, "delta": {"content": f" word{number}"}}], "id": "x" * 36}
        reads.append(sse.Read(300.0 + number * BEAT_MS, event(delta)))
    end_ms = reads[-1].t_ms
    finish = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    reads.append(sse.Read(end_ms, finish + b"data: [DONE]\n\n"))
    request = Request("POST", "/v1/chat/completions", {}, {"stream": True, "messages": []})
    return Recording(
        "sse/stream-1", request, 200, (), 1.0, 2.0, tuple(reads), End("eof", end_ms + 1.0)
    )


def write_run(directory: Path) -> None:
    """A directory as a run leaves it, with step 2 alone."""
    run = RunDirectory(directory, {})
    run.begin_step("sse")
    one = recording()
    run.keep(one)
    result = sse_result({"stream-1": one})
    run.write("sse_raw.txt", result.raw, "sse")
    run.write("sse.py", Path(sse.__file__).read_bytes(), "sse")
    run.write(CHUNKS, sse.chunk_lines(map(asdict, result.chunks)), "sse")
    run.commit_step("sse")
    run.finish_step("sse", outcome="passed", first_token_ms=result.timeline.first_token_ms)
    run.save()
    run.close()


def opened_ms(path: Path) -> list[float]:
    """Milliseconds until the page was loaded and its charts drawn."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(OPENED):
            tab = browser.new_page()
            begun = time.perf_counter()
            tab.goto(path.as_uri())
            tab.locator("#tokens-chart svg").wait_for()
            found.append((time.perf_counter() - begun) * 1000.0)
            marks = tab.locator("#tokens-chart svg g.mark-symbol path").count()
            assert marks == PIECES, f"{marks} marks"
            tab.close()
        browser.close()
    return found


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "llm"
        write_run(directory)
        path = directory / "report.html"
        begun = time.perf_counter()
        page.write(path, directory, MAX_BYTES)
        figures = {
            "pieces": PIECES,
            "made_s": round(time.perf_counter() - begun, 2),
            "bytes": path.stat().st_size,
            "opened_ms": round(statistics.median(opened_ms(path))),
        }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
