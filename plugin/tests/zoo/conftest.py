"""One real server per set of options for all of the zoo, and the lab run against it."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
from faults import Fault
from judging import Found, Servers
from scripted import serving

from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import environment, free_port, guarded

# A slot that never goes idle is waited for in vain: not for half a minute in a test.
SHORT_WAITS = """
from pytest_llm_latency.steps.cancel import watch
watch.IDLE_DEADLINE_S = watch.IDLE_DEADLINE_IN_PREFILL_S = 3.0
"""


@pytest.fixture(scope="session")
def zoo_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 90 tokens a second in generation, 600 in prefill."""
    path = tmp_path_factory.mktemp("model") / "zoo.gguf"
    return tiny_model.write(path, layers=8, width=896, heads=14)


@pytest.fixture(scope="session")
def servers(
    tmp_path_factory: pytest.TempPathFactory, slow_gguf: Path, zoo_gguf: Path
) -> Iterator[Servers]:
    """`servers(fault)` -> (URL, log) of the real server that the fault is put before."""
    running: dict[tuple[bool, tuple[str, ...]], tuple[str, Path]] = {}
    with contextlib.ExitStack() as stack:

        def server(fault: Fault) -> tuple[str, Path]:
            key = (fault.slow, fault.server)
            if key not in running:
                port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
                url = f"http://127.0.0.1:{port}"
                # Not the fastest: a busy machine lets the test's own proxy sleep for as long as
                # an answer of that one takes, and the answer then comes all at once indeed.
                gguf = zoo_gguf if fault.slow else slow_gguf
                command = own_command("local", gguf, port, fault.server)
                stack.enter_context(guarded(command, log, url, 60.0, lambda _: None, environment()))
                running[key] = url, log
            return running[key]

        yield server


class LyingLog:
    """A copy of a server's log that says of every task that it was cancelled."""

    def __init__(self, real: Path, path: Path) -> None:
        self.path = path
        self._real = real
        self._copied = 0
        self._lock = threading.Lock()
        path.touch()

    def claim_a_cancel(self) -> None:
        """Append what is new in the real log, and the lie."""
        with self._lock, self.path.open("ab") as file:
            lines = self._real.read_bytes()
            task = re.findall(rb"task (\d+) \| processing task", lines)[-1]
            lie = b"W srv          stop: cancel task, id_task = %b\n" % task
            file.write(lines[self._copied :] + lie)
            self._copied = len(lines)


@pytest.fixture
def zoo_lab(pytester: pytest.Pytester, servers: Servers, short_kb: Path) -> Callable[..., Found]:
    """`zoo_lab(fault)`: the lab behind the fault, or `through` a proxy of one's own; what run.json
    says of each step."""
    pytester.makepyfile(short_waits=SHORT_WAITS)

    def run(fault: Fault, *args: str, through: str | None = None) -> Found:
        url, log = servers(fault)
        if fault.log == "another":
            log = pytester.path / "another.log"
            log.write_text("W srv          stop: cancel task, id_task = 1\n")
        proxy_of_fault = fault.proxy
        if fault.log == "lies":
            lying = LyingLog(log, pytester.path / "lying.log")
            log = lying.path
            proxy_of_fault = replace(fault.proxy, on_close=lying.claim_a_cancel)
        kb = [f"--llm-kb={short_kb}"]
        logged = [] if fault.log == "none" else [f"--llm-log={log}"]
        with serving(proxy_of_fault.script(url)) as proxy:
            pytester.runpytest_subprocess(
                "--pyargs", "test_llm_latency", "-p", "no:cacheprovider", "-p", "no:randomly",
                f"--llm-url={through or proxy.base_url}", *kb, *logged, *fault.args, *args, timeout=300,
            )  # fmt: skip
        index = json.loads((pytester.path / "voice" / "llm" / "run.json").read_text("utf-8"))
        found = {**index["failures"], **index["steps"]}
        del found["capabilities"]  # no test
        return found

    return run
