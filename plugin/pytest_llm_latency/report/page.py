"""The page: report.html, made of a directory's files alone, one file that asks no network.

Whatever a model or a server wrote is shown and does nothing: the template escapes it, what
could deceive the eye is replaced, and the page's own rules let no other script run. It needs the
extra `report`; nothing else here imports it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar, get_args

import jinja2
import vl_convert
from altair.utils.schemapi import SchemaValidationError
from markupsafe import Markup

from .. import budget
from ..causes import Cause
from ..errors import ArtifactError, LatencyError
from ..grade import NONSENSE, GradedLab
from ..language import Language
from ..language import language as language_of
from ..numbers import Number, numbers
from ..relations import Outcome, Verdict, count, milliseconds
from ..results import (
    CacheResult,
    CancelResult,
    PrefillResult,
    SentenceResult,
    ServerResult,
    SseResult,
    TtftResult,
)
from ..rundir import RUN_FILE, RunIndex, write_all
from ..sentences import Rule
from ..speech import utterances
from . import charts
from .inert import inert_lines

R = TypeVar("R")
STEPS: Mapping[str, str] = {
    "server": "Server",
    "sse": "The stream",
    "ttft": "Time to first token",
    "prefill": "Prefill",
    "cache": "KV cache",
    "sentence": "First sentence",
    "cancel": "Cancel",
    "report": "Report",
}
LEGS: Mapping[str, str] = {
    "first": "cold",
    "second": "the same again",
    "changed_suffix": "a line changed at its end",
    "changed_prefix": "a line changed at its front",
}
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
ENGLISH = language_of("en")
RAW_HEAD_BYTES, RAW_TAIL_BYTES = 100_000, 20_000
TEXT_CHARACTERS = 4_000


@dataclass(frozen=True)
class StepView:
    """What the page says of a step before its numbers. `error` is why it could not be measured;
    `run` the run that did."""

    name: str
    title: str
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    error: str | None = None
    run: str | None = None


@dataclass
class Story:
    """All that the page tells, as the files have it; None where they do not."""

    server: ServerResult | None = None
    sse: SseResult | None = None
    ttft: TtftResult | None = None
    prefill: PrefillResult | None = None
    cache: CacheResult | None = None
    sentence: SentenceResult | None = None
    cancel: CancelResult | None = None
    steps: list[StepView] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule = "plain"
    words_per_minute: float = 150.0


def write(
    path: Path,
    directory: Path,
    max_bytes: int,
    verdicts: Sequence[Verdict] | None = None,
    language: Language = ENGLISH,
) -> None:
    """Write the page of `directory` to `path`. The verdicts are those of its run.json, if none
    are given. Raises ArtifactError."""
    try:
        text = render(read(directory, max_bytes, verdicts), language)
    except (*NONSENSE, jinja2.TemplateError, SchemaValidationError) as error:
        # Files may hold anything; whatever the page stumbles over is theirs.
        raise ArtifactError(f"{directory}: no page can be made of it: {error!r}") from None
    write_all({path: text.encode("utf-8")})


def read(directory: Path, max_bytes: int, verdicts: Sequence[Verdict] | None = None) -> Story:
    """What the files of a directory tell. Raises ArtifactError where it has no run.json that can
    be read, and no verdicts are given."""
    lab = GradedLab(directory, max_bytes)
    story = Story()
    errors: dict[str, str] = {}
    for step in STEPS:
        result = _result(getattr(lab, step), step, errors)
        if step != "report":
            setattr(story, step, result)
    index = lab.index
    if index is None and verdicts is None:
        raise ArtifactError(f"{RUN_FILE}: is missing")
    judged = stored_verdicts(index) if verdicts is None and index is not None else verdicts or ()
    known = {verdict.step: None for verdict in judged}
    names = [*STEPS, *(step for step in known if step not in STEPS)]
    for step in names:
        view = _step(step, [v for v in judged if v.step == step], index, errors)
        if view is not None:
            story.steps.append(view)
    if index is not None:
        story.facts = index.newest()
        if index.has("sentence"):
            careful = index.option("sentence", "sentence") == "careful"
            story.rule = "careful" if careful else "plain"
            story.words_per_minute = float(index.option("sentence", "speech_wpm") or 150.0)
    return story


def _result(ask: Callable[[], R], step: str, errors: dict[str, str]) -> R | None:
    try:
        return ask()
    except LatencyError as error:
        errors[step] = str(error)
        return None


def _step(
    step: str,
    verdicts: Sequence[Verdict],
    index: RunIndex | None,
    errors: Mapping[str, str],
) -> StepView | None:
    """None where the directory has nothing of the step."""
    title = STEPS.get(step, step)
    if index is None:
        return StepView(step, title, verdicts, error=None if verdicts else errors.get(step))
    failed = index.failures().get(step)
    if not index.has(step):
        if failed is None:
            return StepView(step, title, verdicts) if verdicts else None
        return StepView(step, title, error=str(failed.get("error")), run=failed["run"])
    entry = index.step(step)
    notes = [str(note) for note in entry.get("notes", ())]
    error = errors.get(step) if failed is None else str(failed.get("error"))
    return StepView(step, title, verdicts, notes, error, entry["run"])


def stored_verdicts(index: RunIndex) -> list[Verdict]:
    """The verdicts of a run.json, those beside a baseline after the step's own. Raises
    ArtifactError where they are none."""
    found = []
    for step in index.steps():
        entry = index.step(step)
        compared = entry.get("compared") or {}
        for row in [*(entry.get("verdicts") or ()), *(compared.get("verdicts") or ())]:
            try:
                cause = row["cause"] and Cause(row["cause"]["code"], row["cause"]["sentence"])
                found.append(
                    Verdict(row["step"], row["relation"], row["outcome"], row["numbers"], cause)
                )
                OUTCOMES.index(found[-1].outcome)
            except (TypeError, ValueError, LookupError) as error:
                raise ArtifactError(f"{RUN_FILE}: verdicts of {step}: {error!r}") from None
    return found


def render(story: Story, language: Language) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_llm_latency.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
        finalize=_inert,
    )
    environment.install_gettext_translations(language.translations, newstyle=False)  # type: ignore[attr-defined]
    environment.filters |= {"ms": milliseconds, "n": count, "said": language.say}
    say = language._
    line = budget.fit(story.prefill) if story.prefill is not None else None
    bars = budget.budgets(story.sentence, story.cache, story.rule)
    spoken = (
        utterances(story.sentence.timeline.pieces, story.rule, story.words_per_minute)
        if story.sentence is not None and story.sentence.timeline is not None
        else ()
    )
    closes = _closes(story.cancel, say)
    found: dict[str, Number] = {}
    for step in STEPS:
        result = getattr(story, step, None)
        if result is not None:
            found |= numbers(step, result)
    for bar in bars:
        found |= {f"budget.{bar.name}.{phase}": bar.ms(phase) for phase in budget.PHASES}
        found[f"budget.{bar.name}.first_sentence_ms"] = bar.first_sentence_ms
    if line is not None:
        found |= {f"prefill.fit.{n}": line.ttft_ms(n) for n in budget.PROMPT_TOKENS}
    specs: dict[str, charts.Spec] = {}
    if bars:
        specs["budget-chart"] = charts.voice_budget(bars, say)
    if story.sse is not None and story.sse.timed:
        specs["tokens-chart"] = charts.tokens(story.sse.timeline, say)
    if line is not None:
        specs["prefill-chart"] = charts.prefill(line, say)
    if story.cache is not None:
        specs["cache-chart"] = charts.cache(story.cache, _legs(story.cache), say)
    if spoken:
        specs["spoken-chart"] = charts.spoken(spoken, say)
    if story.cancel is not None and story.cancel.cases:
        specs["cancel-chart"] = charts.cancel(story.cancel.cases, closes, say)
    library = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    scripts = [Markup(library), Markup(_DRAW)]
    return environment.get_template("page.html.jinja").render(
        tag=language.tag,
        story=story,
        steps={step.name: step for step in story.steps},
        outcomes=_outcomes(story.steps),
        wrong=_wrong(story.steps),
        bars=bars,
        phases=[phase for phase in budget.PHASES if any(bar.ms(phase) for bar in bars)],
        levers=budget.levers(story.cache, story.prefill, story.sentence),
        fit=line,
        numbers=found,
        prompt_tokens=budget.PROMPT_TOKENS,
        legs=_legs(story.cache),
        spoken=spoken,
        closes=closes,
        until=(charts.UNTIL_CLOSE, charts.UNTIL_IDLE),
        raw=_raw(story.sse),
        text_characters=TEXT_CHARACTERS,
        server=_server_line(story.facts.get("server")),
        facts=list(_flat(story.facts)),
        specs=specs,
        scripts=scripts,
        policy=_policy(scripts),
    )


_DRAW = """
"use strict";
const specs = JSON.parse(document.getElementById("specs").textContent);
for (const [id, spec] of Object.entries(specs)) {
  vegaEmbed(document.getElementById(id), spec, {renderer: "svg", actions: false, ast: true});
}
"""


def _inert(value: Any) -> Any:
    """What the template is about to show; its own markup passes."""
    return inert_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _policy(scripts: Sequence[str]) -> str:
    """The page's Content-Security-Policy: its own scripts, by their hashes, and nothing else from
    anywhere. (The chart library writes style elements.)"""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


def _server_line(server: Any) -> str:
    """Which server it was, as far as run.json tells."""
    known = server if isinstance(server, Mapping) else {}
    return " · ".join(str(known[name]) for name in ("url", "model") if known.get(name))


def _outcomes(steps: Sequence[StepView]) -> dict[str, int]:
    """How many verdicts of each outcome, the bad ones first."""
    found = [verdict.outcome for step in steps for verdict in step.verdicts]
    return {outcome: found.count(outcome) for outcome in OUTCOMES}


@dataclass(frozen=True)
class Wrong:
    """Verdicts of one step that are broken, or inconclusive, for the same cause."""

    title: str
    verdicts: Sequence[Verdict]
    cause: Cause | None


def _wrong(steps: Sequence[StepView]) -> list[Wrong]:
    """What is wrong, the same cause said once."""
    found = []
    for step in steps:
        bad = [one for one in step.verdicts if one.outcome in ("broken", "inconclusive")]
        for (_, cause), same in groupby(bad, key=lambda one: (one.outcome, one.cause)):
            found.append(Wrong(step.title, list(same), cause))
    return found


def _legs(cache: CacheResult | None) -> dict[str, str]:
    """The legs that the file has, and what they are called."""
    return {
        leg: name for leg, name in LEGS.items() if cache and getattr(cache.cache, leg) is not None
    }


def _closes(cancel: CancelResult | None, say: Callable[[str], str]) -> list[str]:
    """A name for each close: two may fall into one phase."""
    cases = cancel.cases if cancel is not None else ()
    return [f"{number}. {say(case.phase)}" for number, case in enumerate(cases, 1)]


@dataclass(frozen=True)
class Raw:
    """The raw stream as text, from both ends where it is long: `left_out` bytes are missing."""

    head: str
    tail: str
    left_out: int


def _raw(sse: SseResult | None) -> Raw | None:
    if sse is None:
        return None
    raw = sse.raw
    if len(raw) <= RAW_HEAD_BYTES + RAW_TAIL_BYTES:
        return Raw(raw.decode("utf-8", "replace"), "", 0)
    head, tail = raw[:RAW_HEAD_BYTES], raw[-RAW_TAIL_BYTES:]
    left_out = len(raw) - len(head) - len(tail)
    return Raw(head.decode("utf-8", "replace"), tail.decode("utf-8", "replace"), left_out)


def _flat(value: Any, name: str = "") -> Any:
    """(dotted name, text) of every fact, one that is empty left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif value not in (None, [], ""):
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
