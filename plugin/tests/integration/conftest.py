"""Runs pytest on the lab in a directory of its own, against the real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def lab(pytester: pytest.Pytester, tiny_gguf: Path) -> Run:
    """`lab("-k", "cache")`: the installed suite in an empty directory, on the small model."""

    def run(*args: str, own_server: bool = True) -> pytest.RunResult:
        server = [f"--llm-gguf={tiny_gguf}", "--llm-server=local"] if own_server else []
        return pytester.runpytest_subprocess(
            "--pyargs", "test_llm_latency", "-p", "no:cacheprovider", *server, *args, timeout=100
        )

    return run


@pytest.fixture
def refused(pytester: pytest.Pytester) -> Run:
    """`refused("--llm-url=x")`: the same for what ends before anything begins, in this process."""

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(
            "--pyargs", "test_llm_latency", "-p", "no:cacheprovider", *args
        )

    return run


@pytest.fixture
def artifact(pytester: pytest.Pytester) -> Callable[[str], Any]:
    """`artifact("cache.json")`: a JSON file of the run."""
    return lambda name: json.loads((pytester.path / "voice" / "llm" / name).read_text("utf-8"))


def summary(result: pytest.RunResult) -> str:
    """All that pytest printed."""
    return result.stdout.str() + result.stderr.str()
