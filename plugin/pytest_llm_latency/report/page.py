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
from typing import Any

import jinja2
import vl_convert
from altair.utils.schemapi import SchemaValidationError
from markupsafe import Markup

from ..compare.numbers import Number, numbers
from ..errors import ArtifactError
from ..evidence.files import Directory
from ..evidence.run_index import FAILING
from ..language import Language
from ..language import language as in_language
from ..proof.verdicts import NONSENSE
from ..report import MADE_BY, budget, charts
from ..steps.cache.result import CacheResult
from ..steps.cancel.result import CancelResult
from ..steps.prefill.fit import fit
from ..steps.sentence.speech import utterances
from ..steps.sse.result import SseResult
from ..verdicts.verdict import Cause, Verdict, count, milliseconds
from .inert import inert_lines
from .story import NO_ERRORS, OUTCOMES, STEPS, StepView, Story, read

LEGS: Mapping[str, str] = {
    "first": "cold",
    "second": "the same again",
    "changed_suffix": "a line changed at its end",
    "changed_prefix": "a line changed at its front",
}
ENGLISH = in_language("en")
RAW_HEAD_BYTES, RAW_TAIL_BYTES = 100_000, 20_000
TEXT_CHARACTERS = 4_000


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
    line = fit(story.prefill) if story.prefill is not None else None
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
