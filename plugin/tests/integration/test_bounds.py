"""Whatever a server sends, this process stays small, goes on in time, and says what was wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hostile import CHAT, CHATS, PLAINS, Answer, good, sends
from scripted import Script, serving

MORE_AT_MOST_MB = 200
SECONDS_AT_MOST = 45.0

QUICK = {"redirect", "gzip bomb", "blank lines", "an event without an end", "headers", "many lists"}


def among(cases: Mapping[str, Answer]) -> list[Any]:
    """The names of all, most of them for the zoo."""
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.zoo) for name in cases]


# What a run does: it looks, asks for the facts, and streams as steps do, all of it kept.
PROGRAM = """
import json, re, resource, sys, tempfile, time
from pathlib import Path
from pytest_llm_latency.errors import LatencyError
from pytest_llm_latency.evidence.run_directory import RunDirectory
from pytest_llm_latency.plan import Plan
from pytest_llm_latency.servers.capabilities import look
from pytest_llm_latency.steps.bench import Bench, check_context
from pytest_llm_latency.steps.server.measure import measure_server
from pytest_llm_latency.steps.sse.measure import measure_sse
from pytest_llm_latency.wire.channel import Deadlines
from pytest_llm_latency.wire.client import Client

began, told = time.perf_counter(), []
with tempfile.TemporaryDirectory() as directory:
    run = RunDirectory(Path(directory), {}, "test")
    deadlines = Deadlines(first_byte=2.0, gap=2.0, total=2.0, query=1.0)
    client = Client(sys.argv[1], deadlines=deadlines, keep=run.keep)
    offers = look(client, lambda _: None)
    told.append(offers.stream_error)
    run.facts["offers"] = offers.facts()
    client = client.speaking(offers.dialect)
    nothing = lambda *_: None
    bench = Bench(client, offers, client, offers, Plan(), ["x"], nothing, nothing, run.keep_text)
    for ask in (check_context, measure_server):
        try:
            ask(bench)
        except LatencyError as error:
            told.append(str(error))
    timeline = measure_sse(bench).timeline
    told.append(timeline.error)
    client.record([{"role": "user", "content": "hi"}], close_on_token=True)
    run.save()
    files = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
seconds = time.perf_counter() - began
try:  # a process inherits the other peak of who began it
    peak_kb = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
except OSError:
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # macOS
told = [text for text in told if text]
print(json.dumps([peak_kb / 1024, seconds, files / 1024 / 1024, timeline.text[:40], told]))
"""


@dataclass(frozen=True)
class Ran:
    """What a run at a server took, and what it said."""

    peak_mb: float
    seconds: float
    files_mb: float
    text: str
    told: list[str]


def run(program: Path, script: Script) -> Ran:
    """`program` in a process of its own, whose peak is measured."""
    with serving(script) as server:
        done = subprocess.run(
            [sys.executable, str(program), server.base_url],
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Ran(*json.loads(done.stdout))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bounds") / "run.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def base_mb(program: Path) -> float:
    """What a run takes at a good server."""
    ran = run(program, good)
    assert (ran.told, ran.text[:6]) == ([], "0 1 2 ")
    return ran.peak_mb


def check(ran: Ran, base_mb: float) -> None:
    print(f"{ran.peak_mb - base_mb:.0f} MB more, {ran.seconds:.1f} s, {ran.files_mb:.1f} MB kept")
    print(*ran.told, sep="\n")
    assert ran.peak_mb - base_mb < MORE_AT_MOST_MB
    assert ran.seconds < SECONDS_AT_MOST


@pytest.mark.parametrize("name", among(CHATS))
def test_a_hostile_chat(name: str, program: Path, base_mb: float) -> None:
    ran = run(program, sends(CHATS[name], CHAT))
    check(ran, base_mb)
    assert ran.told


@pytest.mark.parametrize("name", among(PLAINS))
def test_a_hostile_answer_to_every_question(name: str, program: Path, base_mb: float) -> None:
    answer: Answer = PLAINS[name]
    ran = run(program, sends(answer, *("/health", "/v1/models", "/props", "/slots", "/metrics", "/apply", "/tokenize")))  # fmt: skip
    check(ran, base_mb)
    assert ran.text.startswith("0 1 2 ")  # the chat is measured all the same
