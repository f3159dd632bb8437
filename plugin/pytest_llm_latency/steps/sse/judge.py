"""Judges the sse step: the stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...evidence.artifacts import Chunk
from ...verdicts.causes import unusable
from ...verdicts.stream import comes_as_made, ttft_below_total
from ...verdicts.verdict import Cause, Verdict, holds_if, outcome_of
from .raw import raw_contents
from .result import SseResult


def judge_sse(result: SseResult) -> list[Verdict]:
    """Step 2: the stream ended well, and the pieces are the raw file's."""
    timeline = result.timeline
    ending = "[DONE]" if timeline.done else f"finish_reason {timeline.finish_reason!r}, no [DONE]"
    failed = unusable(timeline)
    ended = Verdict(
        "sse",
        "the stream has its end",
        "holds" if failed is None else outcome_of(failed),
        f"{len(timeline.sent)} pieces, {ending}",
        failed,
    )
    pieces = [pieces_are_raw_content(result.raw, result.chunks), times_never_fall(result.chunks)]
    if not (result.chunks or timeline.sent) and result.timed and ended.cause is not None:
        pieces = [  # there is nothing to compare, and `ended` says why
            Verdict("sse", one.relation, "not measurable", "no pieces", ended.cause)
            for one in pieces
        ]
    verdicts = [ended, *pieces]
    if not result.timed:
        return verdicts
    return [*verdicts, ttft_below_total(timeline, "sse"), comes_as_made(timeline, "sse")]


def pieces_are_raw_content(raw: bytes, chunks: Sequence[Chunk]) -> Verdict:
    """The pieces equal the content in the raw stream, piece for piece."""
    expected = [text for text in raw_contents(raw) if text]
    found = [chunk.text for chunk in chunks]
    differing = next(
        (i for i, (a, b) in enumerate(zip(expected, found)) if a != b),
        min(len(expected), len(found)),
    )
    return holds_if(
        "sse",
        "the pieces equal the raw content, piece for piece",
        expected == found and bool(found),
        f"{len(found)} pieces, {len(expected)} in the raw file",
        Cause("pieces-differ", _piece_words(differing, found, expected)),
    )


def _piece_words(at: int, found: Sequence[str], expected: Sequence[str]) -> str:
    """The first piece that differs, with both texts, and what it seems to be."""
    if found == expected:
        return "there is no piece at all"
    where = f"piece {at + 1}"
    if at >= len(found):
        return f"{where} is missing: expected {expected[at]!r}, the next content in sse_raw.txt"
    shown = f"{where}: found {found[at]!r}, expected "
    if at >= len(expected):
        return f"{shown}none: sse_raw.txt has {len(expected)} with content"
    shown += repr(expected[at])
    whys = {
        "an empty string is no piece": found[at] == "",
        "this is the role chunk, it is no piece": found[at] in ("assistant", "None", "null"),
        "this is the end of the stream, it is no piece": found[at] == "[DONE]",
        "white space is a part of a piece": found[at] == expected[at].strip(),
        "two pieces were put together": found[at] == "".join(expected[at : at + 2]),
        "one of them was left out": expected[at + 1 : at + 2] == [found[at]],
        "this one came before": found[at] in expected[:at] and found[at] != expected[at],
    }
    why = next((words for words, holds in whys.items() if holds), None)
    return shown if why is None else f"{shown}: {why}"


def times_never_fall(chunks: Sequence[Chunk]) -> Verdict:
    """Arrival times are in order."""
    falls = [i for i, (a, b) in enumerate(pairwise(chunks)) if b.t_ms < a.t_ms]
    return holds_if(
        "sse",
        "t_ms never falls",
        not falls,
        f"{len(chunks)} pieces",
        Cause("time-falls", f"piece {falls[0] + 2} is earlier than the one before")
        if falls
        else None,
    )
