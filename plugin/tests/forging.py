"""What a forger of a run's directory does: change files, then make artifacts, hashes and verdicts
anew, by the product's own code, so that nothing is left but what the forgery contradicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_llm_latency import sse
from pytest_llm_latency.errors import LatencyError
from pytest_llm_latency.evidence.artifacts import FILES, dump, parse, report_of
from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.steps.judges import JUDGES, MEASURED_BEHIND
from pytest_llm_latency.steps.report.result import SOURCES

MAX_BYTES = 64 * 1024 * 1024
STEPS = ("server", "sse", "ttft", "prefill", "cache", "sentence", "cancel", "report")
Rows = list[dict[str, Any]]
Forgery = Callable[[Path], Any]


def wrong(directory: Path, *steps: str) -> dict[str, str]:
    """What a grading finds wrong in the files, by step: whether the relations hold is not asked."""
    try:
        lab = GradedLab(directory, MAX_BYTES)
    except LatencyError as error:
        return dict.fromkeys(steps, str(error))
    found = {}
    for step in steps:
        try:
            judged = JUDGES[step](getattr(lab, step)())
            rows = [*judged, *lab.extra(step, judged)]
        except LatencyError as error:
            found[step] = str(error)
            continue
        bad = [
            row for row in rows
            if row.cause is not None and row.cause.code == "evidence-differs"
        ]  # fmt: skip
        if bad:
            found[step] = "\n".join(line for row in bad for line in row.lines())
    return found


def repair(directory: Path, *steps: str) -> None:
    """Artifacts, verdicts and hashes made anew from the evidence as it is now."""
    try:
        lab = GradedLab(directory, MAX_BYTES)
    except LatencyError:
        return  # run.json itself is refused
    run = json.loads((directory / "run.json").read_text("utf-8"))
    for step in steps:
        try:
            result = getattr(lab, step)()
        except LatencyError:
            continue
        entry = run["steps"][step]
        if step in MEASURED_BEHIND:
            entry["verdicts"] = [asdict(verdict) for verdict in JUDGES[step](result)]
        for name, content in _artifacts(step, result).items():
            (directory / name).write_bytes(content)
        if step == "sse":
            entry["first_token_ms"] = result.timeline.first_token_ms
        elif step == "ttft":
            entry["first_token_ms"] = [one.first_token_ms for one in result.timelines]
        elif step == "sentence":
            entry["speech"] = result.speech and asdict(result.speech)
        elif step == "cancel":
            entry["cases"] = [asdict(case) for case in result.cases]
    if all((directory / name).exists() for name in SOURCES):
        sources = (parse(FILES[name], (directory / name).read_text("utf-8"), name) for name in SOURCES)  # fmt: skip
        (directory / "report.json").write_text(dump(report_of(*sources)), "utf-8")
    for name, entry in run["artifacts"].items():
        if (directory / name).exists():
            entry["sha256"] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    (directory / "run.json").write_text(json.dumps(run), "utf-8")


def _artifacts(step: str, result: Any) -> dict[str, bytes]:
    if step == "server":
        return {name: reply.body for name, reply in result.files()}
    if step == "sse":
        lines = sse.chunk_lines(map(asdict, result.chunks))
        return {"sse_raw.txt": result.raw, "chunks.jsonl": lines.encode()}
    if step == "report":
        return {}
    artifact = result.rows if step == "prefill" else getattr(result, step)
    return {f"{step}.json": dump(artifact).encode()}


# --- what is changed ---


def place(directory: Path, leg: str) -> Path:
    return directory / "evidence" / f"{leg}.jsonl"


def rows_of(directory: Path, leg: str) -> Rows:
    """A recording, or polls: one object a line."""
    return [
        json.loads(line) for line in place(directory, leg).read_text("utf-8").split("\n") if line
    ]


def write_rows(directory: Path, leg: str, rows: Rows) -> None:
    place(directory, leg).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def edit(leg: str, change: Callable[[Rows], Any]) -> Forgery:
    """Change the lines of a recording in place."""

    def forge(directory: Path) -> None:
        rows = rows_of(directory, leg)
        change(rows)
        write_rows(directory, leg, rows)

    return forge


def edit_longest(step: str, change: Callable[[Rows], Any]) -> Forgery:
    """The same of the step's recording that came in the most reads: on a busy machine some come in
    one, which leaves nothing to swap."""

    def forge(directory: Path) -> None:
        legs = [path.stem for path in (directory / "evidence" / step).glob("*.jsonl")]
        leg = max(sorted(legs), key=lambda one: len(rows_of(directory, f"{step}/{one}")))
        edit(f"{step}/{leg}", change)(directory)

    return forge


def head(leg: str, **changes: Any) -> Forgery:
    return edit(leg, lambda rows: rows[0].update(changes))


def end(leg: str, **changes: Any) -> Forgery:
    return edit(leg, lambda rows: rows[-1].update(changes))


def asked(leg: str, **changes: Any) -> Forgery:
    """Other fields of the request: of its body where they are none of its own."""

    def change(rows: Rows) -> None:
        request = rows[0]["request"]
        for key, value in changes.items():
            where = request if key in ("method", "path", "body") else request["body"]
            if value is None:
                where.pop(key, None)
            else:
                where[key] = value

    return edit(leg, change)


def prompt(leg: str, change: Callable[[str], str], message: int = 0) -> Forgery:
    """Another text of a message."""

    def forge(rows: Rows) -> None:
        one = rows[0]["request"]["body"]["messages"][message]
        assert one["content"] != change(one["content"])
        one["content"] = change(one["content"])

    return edit(leg, forge)


def moved(rows: Rows, change: Callable[[float], float]) -> None:
    """All times of an answer changed."""
    for row in rows[1:]:
        row["t_ms"] = round(change(row["t_ms"]), 3)
    if rows[0]["headers_ms"] is not None:
        rows[0]["headers_ms"] = round(min(change(rows[0]["headers_ms"]), rows[-1]["t_ms"]), 3)


def copy(source: str, target: str, change: Callable[[float], float] = lambda t: t) -> Forgery:
    """Another leg's answer, behind this one's own request (a new leg: behind the same)."""

    def forge(directory: Path) -> None:
        rows = rows_of(directory, source)
        if place(directory, target).exists():
            rows[0]["request"] = rows_of(directory, target)[0]["request"]
        rows[0]["label"] = target
        if change(1.0) != 1.0:
            moved(rows, change)
        write_rows(directory, target, rows)
        run = json.loads((directory / "run.json").read_text("utf-8"))
        name = f"evidence/{target}.jsonl"
        costs = run["runs"][run["run"]]["costs"]
        costs["requests"], costs["tokens"] = costs["requests"] + 1, costs["tokens"] + 9999
        run["artifacts"][name] = {**run["artifacts"][f"evidence/{source}.jsonl"], "step": target.partition("/")[0]}  # fmt: skip
        (directory / "run.json").write_text(json.dumps(run), "utf-8")

    return forge


def drop(*legs: str) -> Forgery:
    """Legs as if they had never been asked."""

    def forge(directory: Path) -> None:
        run = json.loads((directory / "run.json").read_text("utf-8"))
        for leg in legs:
            step, _, name = leg.partition("/")
            found = [path for pattern in (name, f"{name}.*") for path in (directory / "evidence" / step).glob(f"{pattern}.jsonl")]  # fmt: skip
            assert found, leg
            for path in set(found):
                path.unlink()
                del run["artifacts"][f"evidence/{step}/{path.name}"]
        (directory / "run.json").write_text(json.dumps(run), "utf-8")

    return forge


def index(change: Callable[[dict[str, Any]], Any]) -> Forgery:
    """Change run.json."""

    def forge(directory: Path) -> None:
        run = json.loads((directory / "run.json").read_text("utf-8"))
        change(run)
        (directory / "run.json").write_text(json.dumps(run), "utf-8")

    return forge


def facts(change: Callable[[dict[str, Any]], Any]) -> Forgery:
    """Change what run.json says of the run."""
    return index(lambda run: change(run["runs"][run["run"]]))


def offers(**changes: Any) -> Forgery:
    return facts(lambda run: run["server"]["offers"].update(changes))


def replaced(name: str, old: str, new: str) -> Forgery:
    """A text in a file replaced, its first place."""

    def forge(directory: Path) -> None:
        text = (directory / name).read_text("utf-8")
        assert old in text
        (directory / name).write_text(text.replace(old, new, 1), "utf-8")

    return forge


def every(pattern: str, change: Callable[[str], Forgery]) -> Forgery:
    """The same forgery in all legs of a pattern: "ttft/*"."""

    def forge(directory: Path) -> None:
        step, _, leg = pattern.partition("/")
        for path in sorted((directory / "evidence" / step).glob(f"{leg}.jsonl")):
            if not path.name.endswith(".polls.jsonl"):
                change(f"{step}/{path.stem}")(directory)

    return forge


def both(*forgeries: Forgery) -> Forgery:
    """One after the other."""

    def forge(directory: Path) -> None:
        for one in forgeries:
            one(directory)

    return forge
