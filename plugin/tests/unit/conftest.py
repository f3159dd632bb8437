"""What all unit tests are held to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from catalogue import left_in_english

from pytest_llm_latency.verdicts.verdict import Verdict


@pytest.fixture(autouse=True)
def every_verdict_has_its_chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test has judged, its words are in the catalogue."""
    said: set[str] = set()
    make = Verdict.__init__

    def made(verdict: Verdict, *args: Any, **kwargs: Any) -> None:
        make(verdict, *args, **kwargs)
        said.update((verdict.relation, verdict.numbers))
        if verdict.cause is not None:
            said.add(verdict.cause.sentence)

    monkeypatch.setattr(Verdict, "__init__", made)
    yield
    assert sorted(filter(left_in_english, said)) == []
