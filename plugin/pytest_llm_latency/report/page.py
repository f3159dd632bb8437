"""The page: report.html, made of a directory's files alone, one file that asks no network.

Whatever a model or a server wrote is shown and does nothing: the template escapes it, what
could deceive the eye is replaced, and the page's own rules let no other script run. It needs the
extra `report`; nothing else here imports it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import jinja2
import vl_convert
from altair.utils.schemapi import SchemaValidationError
from markupsafe import Markup

from .. import budget
from ..causes import Cause
from ..errors import ArtifactError, LatencyError
from ..files import Directory
from ..grade import GradedLab
from ..language import Language
from ..language import language as in_language
from ..numbers import Number, numbers
from ..proof.verdicts import NONSENSE
from ..relations import FAILING, Outcome, Verdict, count, milliseconds
from ..results import (
    CacheResult,
    CancelResult,
    PrefillResult,
    SentenceResult,
    ServerResult,
    SseResult,
    TtftResult,
)
from ..rundir import RUN_FILE, RunIndex
from ..sentences import Rule
from ..speech import utterances
from . import MADE_BY, charts
from .inert import inert_lines

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
NO_ERRORS: Mapping[str, str] = {}
ENGLISH = in_language("en")
RAW_HEAD_BYTES, RAW_TAIL_BYTES = 100_000, 20_000
TEXT_CHARACTERS = 4_000


@dataclass(frozen=True)
class StepView:
    """What the page says of a step before its numbers. `error` is why the newest run could not
    measure it; `earlier` names the run that did, where that is not the newest."""

    name: str
    title: str
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    error: str | None = None
    earlier: str | None = None


@dataclass(frozen=True)
class Story:
    """All that the page tells, as the files have it: a step's result is None where they do not.
    `facts` are those of the newest run."""

    steps: Sequence[StepView]
    facts: Mapping[str, Any]
    rule: Rule
    words_per_minute: float
    server: ServerResult | None = None
    sse: SseResult | None = None
    ttft: TtftResult | None = None
    prefill: PrefillResult | None = None
    cache: CacheResult | None = None
    sentence: SentenceResult | None = None
    cancel: CancelResult | None = None


def write(
    path: Path,
    directory: Path,
    max_bytes: int,
    verdicts: Sequence[Verdict] | None = None,
    errors: Mapping[str, str] = NO_ERRORS,
    language: Language = ENGLISH,
) -> None:
    """Write the page of `directory` to `path`. The verdicts are those of its run.json, if none
    are given; `errors` are the words of tests that failed without one, by step. Raises
    ArtifactError."""
    try:
        text = render(read(directory, max_bytes, verdicts, errors), language)
    except (*NONSENSE, jinja2.TemplateError, SchemaValidationError) as error:
        # Files may hold anything; whatever the page stumbles over is theirs.
        raise ArtifactError(f"{directory}: no page can be made of it: {error!r}") from None
    Directory(path.parent).write({path.name: text.encode("utf-8")})


def read(
    directory: Path,
    max_bytes: int,
    verdicts: Sequence[Verdict] | None = None,
    errors: Mapping[str, str] = NO_ERRORS,
) -> Story:
    """What the files of a directory tell. Raises ArtifactError where it has no run.json that can
    be read, and no verdicts are given."""
    lab = GradedLab(directory, max_bytes)
    index = lab.index
    if index is None and verdicts is None:
        raise ArtifactError(f"{RUN_FILE}: is missing")
    failed = dict(errors)
    if index is not None:
        failed |= {step: str(entry.get("error")) for step, entry in index.failures().items()}
    told = frozenset(failed)  # that there was a failure; else a step is only not there
    # What an earlier run left of a step that the newest could not measure would mislead.
    measured = [step for step in STEPS if step not in failed]
    results = {step: _result(getattr(lab, step), step, failed) for step in measured}
    results.pop("report", None)
    judged = stored_verdicts(index) if verdicts is None and index is not None else verdicts or ()
    names = dict.fromkeys([*STEPS, *failed, *(verdict.step for verdict in judged)])
    steps = [
        _step(step, [v for v in judged if v.step == step], index, failed, told) for step in names
    ]
    return Story(
        [step for step in steps if step is not None],
        index.newest() if index is not None else {},
        *lab.spoken_by(),
        **results,
    )


def _result(ask: Callable[[], Any], step: str, errors: dict[str, str]) -> Any:
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
    told: frozenset[str],
) -> StepView | None:
    """None where the directory has nothing of the step, and nothing is `told` of it."""
    title, error = STEPS.get(step, step), errors.get(step)
    if index is None:
        return StepView(step, title, verdicts, error=None if verdicts else error)
    if step in told:
        return StepView(step, title, error=error)
    if not index.has(step):
        return StepView(step, title, verdicts) if verdicts else None
    entry = index.step(step)
    notes = [str(note) for note in entry.get("notes", ())]
    is_new = entry["run"] == index.newest()["run"]
    return StepView(step, title, verdicts, notes, error, None if is_new else index.name(entry))


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
    # What is set against each other must be of one run.
    old = {step.name for step in story.steps if step.earlier is not None}
    prefill, cache, sentence = (
        None if step in old else getattr(story, step) for step in ("prefill", "cache", "sentence")
    )
    new = [step for step in story.steps if step.earlier is None]
    bars = budget.budgets(sentence, cache, story.rule)
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
        specs["spoken-chart"] = charts.spoken(spoken[: charts.SENTENCES_AT_MOST], say)
    if story.cancel is not None and story.cancel.cases:
        specs["cancel-chart"] = charts.cancel(story.cancel.cases, closes, say)
    library = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    scripts = [Markup(library), Markup(_DRAW)]
    return environment.get_template("page.html.jinja").render(
        tag=language.tag,
        made_by=Markup(MADE_BY),
        story=story,
        steps={step.name: step for step in story.steps},
        outcomes=_outcomes(new),
        wrong=_wrong(new),
        unmeasured=[step for step in story.steps if step.error is not None],
        bars=bars,
        phases=[phase for phase in budget.PHASES if any(bar.ms(phase) for bar in bars)],
        levers=budget.levers(cache, prefill, sentence),
        fit=line,
        numbers=found,
        prompt_tokens=budget.PROMPT_TOKENS,
        legs=_legs(story.cache),
        spoken=spoken,
        sentences_at_most=charts.SENTENCES_AT_MOST,
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
        bad = [one for one in step.verdicts if one.outcome in FAILING]
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


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every fact, one that is empty left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif value not in (None, [], ""):
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
