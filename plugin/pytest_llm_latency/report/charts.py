"""The charts of the page, as Vega-Lite specifications made with Altair.

Colours are names of the page's CSS variables: light, dark and print are a matter of its style
sheet alone, and so are the legends. The page has a table beside every chart. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from ..evidence.timeline import Piece, Timeline
from ..steps.cache.result import CacheResult
from ..steps.cancel.case import CancelCase
from ..steps.prefill.fit import Fit
from ..steps.sentence.speech import Utterance
from .budget import PHASES, Budget
from .inert import inert

Spec = Mapping[str, Any]
Say = Callable[[str], str]
MARKS_AT_MOST = 12_000
SENTENCES_AT_MOST = 40
# Beyond, a screen reader is not led through every one.
MARKS_READ_OUT = 500
TEXT_SHOWN = 60
UNTIL_CLOSE, UNTIL_IDLE = "until the close", "until the slot is idle"
_TEXT, _GRID, _FAINT = "var(--text)", "var(--grid)", "var(--faint)"
_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _TEXT,
        "titleColor": _TEXT,
        "gridColor": _FAINT,
        "domainColor": _GRID,
        "tickColor": _GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 200,
    },
    "axisX": {"tickCount": 8, "labelOverlap": True},
    "axisY": {"tickCount": 5},
}


def _finished(chart: Any, description: str, height: int | None = None) -> Spec:
    sized = chart.properties(
        width="container", description=inert(description), **({"height": height} if height else {})
    )
    spec: dict[str, Any] = sized.configure(**_CONFIG).to_dict()
    return spec


def _rows(values: Sequence[Mapping[str, Any]]) -> Any:
    return alt.Data(values=list(values))  # type: ignore[no-untyped-call]


def _spans(
    rows: Sequence[Mapping[str, Any]],
    bars: Sequence[str],
    row_title: str,
    colours: Mapping[str, str],
    _: Say,
) -> Any:
    """A bar for each of `bars`, made of rows {"bar", "phase", "start", "end"} in milliseconds from
    the request; `colours` by phase."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    shown = [{**row, "ms": round(row["end"] - row["start"], 1)} for row in rows]
    return (
        alt.Chart(_rows(shown))
        .mark_bar(stroke="var(--page)", strokeWidth=1)
        .encode(
            x=alt.X(
                "start:Q",
                title=_("milliseconds from the request"),
                scale=alt.Scale(nice=False),
            ),
            x2="end:Q",
            y=alt.Y("bar:N", title=None, sort=list(bars)),
            color=alt.Color("phase:N", scale=scale, legend=None),
            tooltip=[
                alt.Tooltip("bar:N", title=row_title),
                alt.Tooltip("phase:N", title=_("phase")),
                alt.Tooltip("ms:Q", title=_("milliseconds")),
            ],
        )
    )


def voice_budget(budgets: Sequence[Budget], _: Say) -> Spec:
    """A bar a request, cut into its phases."""
    rows = [
        {"bar": _(one.name), "phase": _(part.phase), "start": part.start_ms, "end": part.end_ms}
        for one in budgets
        for part in one.parts
    ]
    used = {part.phase for one in budgets for part in one.parts}
    colours = {_(phase): f"var(--{phase.replace(' ', '-')})" for phase in PHASES if phase in used}
    chart = _spans(rows, [_(one.name) for one in budgets], _("request"), colours, _)
    return _finished(chart, _("where the time of a request goes"), 46 * len(budgets))


def tokens(timeline: Timeline, _: Say) -> Spec:
    """The pieces of an answer over time; a mark is what came in one read."""
    reads = _reads(timeline)
    # Ten thousand objects would name their fields ten thousand times.
    columns = {
        "t": [round(read[0].t_ms, 2) for read in reads],
        "pieces": [len(read) for read in reads],
        "text": [inert("".join(piece.text for piece in read))[:TEXT_SHOWN] for read in reads],
    }
    data = (
        alt.Chart(_rows([columns]))
        .transform_flatten(list(columns))
        .transform_window(n="sum(pieces)", sort=[{"field": "t"}])
    )
    x = alt.X("t:Q", title=_("milliseconds from the request"), scale=alt.Scale(zero=True))
    y = alt.Y("n:Q", title=_("pieces so far"))
    marks = data.mark_point(
        filled=True,
        size=30,
        opacity=1,
        color="var(--first-sentence)",
        aria=len(reads) <= MARKS_READ_OUT,
    ).encode(
        x=x,
        y=y,
        tooltip=[
            alt.Tooltip("t:Q", title=_("milliseconds"), format=",.1f"),
            alt.Tooltip("text:N", title=_("text")),
            alt.Tooltip("n:Q", title=_("pieces so far")),
        ],
    )
    return _finished(marks, _("when the pieces of the answer came"), 220)


def _reads(timeline: Timeline) -> list[list[Piece]]:
    """The pieces by the read that brought them: those of one read have one stamp. Of very many,
    neighbours are joined."""
    reads: list[list[Piece]] = []
    for piece in timeline.pieces:
        if reads and reads[-1][0].t_ms == piece.t_ms:
            reads[-1].append(piece)
        else:
            reads.append([piece])
    joined = -(-len(reads) // MARKS_AT_MOST)
    if joined <= 1:
        return reads
    return [
        [piece for read in reads[start : start + joined] for piece in read]
        for start in range(0, len(reads), joined)
    ]


def prefill(line: Fit, _: Say) -> Spec:
    """Time to first text over the tokens of the prompt, and the fitted line."""
    ends = [{"n": n, "ms": line.ttft_ms(n)} for n in (0, line.longest)]
    points = [{"n": n, "ms": round(ms, 3)} for n, ms in line.points]
    x = alt.X("n:Q", title=_("tokens of the prompt"))
    y = alt.Y("ms:Q", title=_("milliseconds to the first text"), scale=alt.Scale(zero=True))
    chart = alt.layer(
        alt.Chart(_rows(ends)).mark_line(color="var(--grid)", aria=False).encode(x=x, y=y),
        alt.Chart(_rows(points))
        .mark_point(filled=True, size=70, opacity=1, color="var(--prefill)")
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("n:Q", title=_("tokens of the prompt"), format=","),
                alt.Tooltip("ms:Q", title=_("milliseconds"), format=",.1f"),
            ],
        ),
    )
    return _finished(chart, _("the first text comes later, the longer the prompt"), 220)


def cache(result: CacheResult, names: Mapping[str, str], _: Say) -> Spec:
    """Time to first text of each leg; `names` are those of the legs."""
    rows = [
        {"leg": _(name), "ms": round(getattr(result.cache, leg).ttft_ms, 3)}
        for leg, name in names.items()
    ]
    chart = (
        alt.Chart(_rows(rows))
        .mark_bar(color="var(--prefill)")
        .encode(
            x=alt.X("ms:Q", title=_("milliseconds to the first text")),
            y=alt.Y("leg:N", title=None, sort=[row["leg"] for row in rows]),
            tooltip=[
                alt.Tooltip("leg:N", title=_("request")),
                alt.Tooltip("ms:Q", title=_("milliseconds"), format=",.1f"),
            ],
        )
    )
    return _finished(chart, _("what the cache saves"), 36 * len(rows))


def cancel(cases: Sequence[CancelCase], names: Sequence[str], _: Say) -> Spec:
    """From each request to its close, and on to the idle slot."""
    listening, after = _(UNTIL_CLOSE), _(UNTIL_IDLE)
    rows = []
    for case, name in zip(cases, names):
        rows.append({"bar": name, "phase": listening, "start": 0.0, "end": case.closed_at_ms})
        if case.idle_after_ms is not None:
            idle_ms = case.closed_at_ms + case.idle_after_ms
            rows.append({"bar": name, "phase": after, "start": case.closed_at_ms, "end": idle_ms})
    colours = {listening: "var(--until-the-close)", after: "var(--until-the-slot-is-idle)"}
    chart = _spans(rows, names, _("close"), colours, _)
    return _finished(chart, _("how long the server works on after the close"), 40 * len(names))


def spoken(utterances: Sequence[Utterance], _: Say) -> Spec:
    """Each sentence: from when it is complete, and while it is spoken."""
    rows = [
        {
            "sentence": f"{number}",
            "ready": round(one.ready_ms, 1),
            "start": round(one.start_ms, 1),
            "end": round(one.end_ms, 1),
            "text": inert(one.text.strip())[:200],
        }
        for number, one in enumerate(utterances, 1)
    ]
    order = [f"{number}" for number in range(1, len(utterances) + 1)]
    y = alt.Y("sentence:N", title=_("sentence"), sort=order)
    tips = [
        alt.Tooltip("text:N", title=_("text")),
        alt.Tooltip("ready:Q", title=_("complete (ms)"), format=",.0f"),
        alt.Tooltip("start:Q", title=_("spoken from (ms)"), format=",.0f"),
        alt.Tooltip("end:Q", title=_("spoken until (ms)"), format=",.0f"),
    ]
    chart = alt.layer(
        alt.Chart()
        .mark_bar(color="var(--first-sentence)")
        .encode(
            x=alt.X("start:Q", title=_("milliseconds from the request")),
            x2="end:Q",
            y=y,
            tooltip=tips,
        ),
        alt.Chart()
        .mark_tick(color="var(--text)", thickness=2)
        .encode(x="ready:Q", y=y, tooltip=tips),
        data=_rows(rows),
    )
    return _finished(chart, _("when each sentence is complete and spoken"), 24 * len(rows) + 20)
