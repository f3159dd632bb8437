"""Every number of a step by its name, for whoever shows or keeps them: page, JUnit file. Pure.

A name is that of the artifact's value, "cache.second.ttft_ms"; what no artifact has stands beside
them. A value is None where the server does not tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..evidence.timeline import count_in
from ..steps.cache.result import CacheResult
from ..steps.cancel.result import CancelResult
from ..steps.prefill.fit import fit
from ..steps.prefill.result import PrefillResult
from ..steps.report.result import ReportResult
from ..steps.sentence.result import SentenceResult
from ..steps.server.result import ServerResult
from ..steps.sse.result import SseResult
from ..steps.ttft.result import TtftResult

Number = float | int | None
TEXTS = frozenset(("salt", "log_line", "log_span"))  # which may be None, and are no number then
Numbers = Iterator[tuple[str, Number]]


def numbers(step: str, result: Any) -> dict[str, Number]:
    """The numbers of a step of the lab, in their order; `result` is what the step gave."""
    return dict(_OF[step](result))


def flat(value: Any, name: str) -> Numbers:
    """The numbers in a dataclass, a mapping or a sequence; texts are left out."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in TEXTS:
                yield from flat(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            yield from flat(inner, f"{name}[{number}]")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}")
    elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        yield name, value


def _server(result: ServerResult) -> Numbers:
    body = result.props.json()  # anything at all, at any depth
    if isinstance(body, dict):
        yield "server.total_slots", count_in(body, "total_slots")
        settings = body.get("default_generation_settings")
        if isinstance(settings, dict):
            yield "server.default_generation_settings.n_ctx", count_in(settings, "n_ctx")


def _sse(result: SseResult) -> Numbers:
    timeline = result.timeline
    yield "sse.pieces", len(timeline.sent)
    yield "sse.tokens", timeline.tokens
    if result.timed:
        yield "sse.reads", len({piece.t_ms for piece in timeline.sent})
        yield "sse.first_token_ms", timeline.first_token_ms
        yield "sse.ttft_ms", timeline.ttft_ms
        yield "sse.total_ms", timeline.total_ms


def _ttft(result: TtftResult) -> Numbers:
    yield from flat(result.ttft, "ttft")


def _prefill(result: PrefillResult) -> Numbers:
    yield from flat(result.rows, "prefill")
    line = fit(result)
    if line is not None:
        yield "prefill.fit.ms_per_token", line.ms_per_token
        yield "prefill.fit.fixed_ms", line.fixed_ms
        yield "prefill.fit.r_squared", line.r_squared


def _cache(result: CacheResult) -> Numbers:
    yield from flat(result.cache, "cache")
    for leg in result.legs:
        yield f"cache.{leg}.cache_n", result.reused(leg)


def _sentence(result: SentenceResult) -> Numbers:
    yield from flat(result.sentence, "sentence")
    if result.speech is not None:
        yield from flat(result.speech, "sentence.speech")


def _cancel(result: CancelResult) -> Numbers:
    yield from flat(result.cancel, "cancel")
    for number, case in enumerate(result.cases):
        yield from flat(case, f"cancel.cases[{number}]")


def _report(result: ReportResult) -> Numbers:
    yield from flat(result.report, "report")


_OF: Mapping[str, Callable[[Any], Numbers]] = {
    "server": _server,
    "sse": _sse,
    "ttft": _ttft,
    "prefill": _prefill,
    "cache": _cache,
    "sentence": _sentence,
    "cancel": _cancel,
    "report": _report,
}
