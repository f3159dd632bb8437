"""The servers of a run, and which of them a test is for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

TARGET = "llm_target"


def target_names(urls: Sequence[str]) -> list[str]:
    """What the targets of a run are called: "url1", "url2"; none where there is but one."""
    return [f"url{number}" for number in range(1, len(urls) + 1)] if len(urls) > 1 else []


def each_target(metafunc: pytest.Metafunc, urls: Sequence[str]) -> None:
    """Have a test once for each target."""
    metafunc.parametrize(TARGET, target_names(urls), indirect=True, scope="session")


def target_of(item: pytest.Item) -> str:
    """The target that an item measures, "" where there is but one."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get(TARGET, "")) if callspec is not None else ""
