"""Every fault is caught in the step that it breaks, by its cause, and in no other; by grading
the saved files, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FAULTS, HEALTHY, Fault
from judging import JUDGES, Found, causes_of, check, graded

pytestmark = [pytest.mark.zoo, pytest.mark.timeout(400)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught(
    fault: Fault, zoo_lab: Callable[..., Found], pytester: pytest.Pytester, tmp_path: Path
) -> None:
    found = zoo_lab(fault)
    check(found, fault.told, fault.words)
    again = graded(pytester.path / "voice" / "llm", tmp_path / "neutral")
    live = {step: causes_of(entry) for step, entry in found.items() if entry.get("verdicts")}
    assert {step: again[step] for step in live} == live


@pytest.mark.parametrize("fault", HEALTHY, ids=lambda fault: fault.name)
def test_what_is_well_passes(fault: Fault, zoo_lab: Callable[..., Found]) -> None:
    found = zoo_lab(fault)
    check(found, {}, "")
    assert set(found) == set(JUDGES)
