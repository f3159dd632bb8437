"""What run.json cannot say of its own runs, files and counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import sse
from ..evidence.endpoints import is_props, server_facts
from ..evidence.run_index import EVIDENCE, RUN_FILE
from ..steps.answers import reply_of
from ..steps.checks import FILES_OF
from ..steps.report.result import SOURCES
from ..wire.costs import of
from .evidence import Evidence, file_of, is_masked, is_streamed


def problem(evidence: Evidence, step: str) -> str | None:
    """What contradicts a step's entries."""
    index = evidence.index
    run = str(index.step(step)["run"])
    if index.facts(run) is None:
        return f"{RUN_FILE}: the step's run is {run}, expected one of its runs"
    newest = str(index.newest()["run"])
    if index.facts(newest) is None:
        return f"{RUN_FILE}: run is {newest!r}, expected one of its runs"
    return (
        _places(evidence, step)
        or _copies(evidence, step)
        or _program(evidence, step)
        or _costs(evidence, step, run)
        or _server(evidence, step)
    )


def _places(evidence: Evidence, step: str) -> str | None:
    """No file of the step is another's. (A test of one's own may write what it likes.)"""
    others = {name for other, names in FILES_OF.items() if other != step for name in names}
    for name in evidence.index.names(step):
        place = f"{EVIDENCE}/{step}/"
        if name in others or (name.startswith(f"{EVIDENCE}/") and not name.startswith(place)):
            return f"{name}: is said to be of the step {step!r}, which writes no such file"
    return None


def _copies(evidence: Evidence, step: str) -> str | None:
    """A report names the run that it copies from."""
    if step != "report":
        return None
    index = evidence.index
    found = index.step(step).get("copied_from_run")
    runs = {index.artifacts().get(name, {}).get("run") for name in SOURCES}
    if found is None or len(runs) != 1 or found in runs:
        return None
    return (
        f"{RUN_FILE}: copied_from_run is {found!r}, expected {runs.pop()!r}, because all its "
        "sources are of that run"
    )


def _program(evidence: Evidence, step: str) -> str | None:
    """sse.py is the one that measured."""
    run = evidence.run(step)
    if step != "sse" or run.plan is None or not run.is_ours:
        return None
    if evidence.read("sse.py") == Path(sse.__file__).read_bytes():
        return None
    return (
        "sse.py: differs from that of this version, expected the same, because run.json says that "
        "this version made it"
    )


def _server(evidence: Evidence, step: str) -> str | None:
    """What is told of the server is what its /props said. (Of a server behind none is recorded.)"""
    told = evidence.run(step).server
    props = evidence.recordings(step).get("props") if step == "server" else None
    if props is None or "upstream" in told or not is_props(reply_of(props)):
        return None
    for name, value in server_facts(reply_of(props).json()).items():
        found = told.get(name)  # null: the model was not loaded yet
        if found is not None and found != value and not is_masked(f"{found}{value}"):
            return (
                f"{RUN_FILE}: server.{name} is {found!r}, expected {value!r}, because the server's "
                f"/props says so ({file_of(step, 'props')})"
            )
    return None


def _costs(evidence: Evidence, step: str, run: str) -> str | None:
    """A run asked for at least what is recorded of it; told in its first step. (Of what was
    measured again, only the last is kept.)"""
    if next((name for name in FILES_OF if evidence.has(name, step)), step) != step:
        return None
    facts: Mapping[str, Any] = evidence.index.facts(run) or {}
    told = facts.get("costs")
    if not facts.get("ended") or not isinstance(told, dict) or "plan" not in facts:
        return None
    requests = tokens = 0
    index = evidence.index
    for name in index.steps():
        if index.step(name)["run"] != run or not index.names(name):
            continue
        for recording in evidence.known(name).values():
            if is_streamed(recording):
                requests += 1
                tokens += of(recording)
    for key, least in (("requests", requests), ("tokens", tokens)):
        if told.get(key, 0) < least:
            return (
                f"{RUN_FILE}: costs.{key} is {told.get(key)}, expected {least} at least, because "
                "so many are recorded of the run"
            )
    return None
