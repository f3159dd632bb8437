"""The verdicts that run.json has of a step against those that its evidence gives. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..evidence.run_index import RUN_FILE
from ..steps.judges import is_supporting
from ..verdicts.verdict import Verdict
from .files import first_difference

WHERE = f"{RUN_FILE}: verdicts"


def stored_difference(found: Any, judged: Sequence[Verdict], same_version: bool) -> str | None:
    """Where the stored rows differ; None: nowhere.

    A run of this very version has these very words. Of another version words may have changed: a
    relation that both know must have the same outcome and the same cause, by its code.
    """
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    known = {row.get("relation"): row for row in rows}
    # A directory of before has no rows for what could not be measured.
    judged = [
        one
        for one in judged
        if one.relation in known
        or one.outcome != "not measurable"
        or not is_supporting(one.relation)
    ]
    if same_version:
        expected = json.loads(json.dumps([asdict(verdict) for verdict in judged]))
        return first_difference(found, expected, WHERE)
    if not rows:
        return f"{WHERE}: found none, expected those of the step"
    differences = (
        first_difference(_identity(known[one.relation]), _identity(asdict(one)), WHERE)
        for one in judged
        if one.relation in known
    )
    return next(filter(None, differences), None)


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a verdict is no wording."""
    cause = row.get("cause")
    return {
        "step": row.get("step"),
        "relation": row.get("relation"),
        "outcome": row.get("outcome"),
        "cause": cause.get("code") if isinstance(cause, dict) else cause,
    }
