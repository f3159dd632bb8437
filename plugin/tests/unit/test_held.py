"""What was held back, by scripted moments: public reports of buffers on the way, and streams of
every healthy kind beside them."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_llm_latency.evidence.artifacts import Sentence, Ttft, TtftRun
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.steps.sentence.judge import judge_sentence
from pytest_llm_latency.steps.sentence.result import SentenceResult
from pytest_llm_latency.steps.ttft.judge import judge_ttft
from pytest_llm_latency.steps.ttft.result import TtftResult
from pytest_llm_latency.verdicts import causes, held
from pytest_llm_latency.verdicts.stream import comes_as_made, ttft_below_total
from pytest_llm_latency.verdicts.verdict import Verdict

WORD = "word "


def stream(
    moments: Iterable[float],
    texts: Sequence[str] | None = None,
    *,
    told_ms: float | None = None,
    tokens: int | None = None,
    size_bytes: int = 0,
    **fields: Any,
) -> Timeline:
    """An answer whose pieces come at `moments`; `told_ms` is the server's own generation time."""
    times = list(moments)
    words = texts if texts is not None else [WORD] * len(times)
    timings: dict[str, Any] = {}
    if told_ms is not None:
        timings = {"predicted_ms": told_ms, "predicted_n": tokens or len(times)}
    elif tokens is not None:
        timings = {"predicted_n": tokens}
    timeline = Timeline(
        pieces=tuple(Piece(t, w, size_bytes) for t, w in zip(times, words, strict=True)),
        total_ms=times[-1] + 1.0,
        timings=timings,
        finish_reason="stop",
        done=True,
        jitter_ms=0.1,
    )
    return replace(timeline, **fields)


def made(count: int = 48, beat_ms: float = 30.0, ttft_ms: float = 50.0) -> list[float]:
    """A moment a beat."""
    return [ttft_ms + beat_ms * i for i in range(count)]


def hold(moments: Sequence[float], begin: int, count: int, trickle_ms: float = 0.0) -> list[float]:
    """Some of them held until the last of them was there."""
    released = moments[begin + count - 1]
    late = [released + trickle_ms * i for i in range(count)]
    changed = [*moments[:begin], *late, *moments[begin + count :]]
    return list(itertools.accumulate(changed, max))


def clumped(moments: Sequence[float], count: int) -> list[float]:
    """All the way."""
    return [moments[min(i // count * count + count, len(moments)) - 1] for i in range(len(moments))]


def lagging(moments: Sequence[float], count: int) -> list[float]:
    """The last few are always kept."""
    return [moments[min(i + count, len(moments) - 1)] for i in range(len(moments))]


def told(timeline: Timeline) -> tuple[str, str]:
    """What is said of how the pieces came, and of the time to first text."""
    verdicts = comes_as_made(timeline), ttft_below_total(timeline)
    found = [f"{v.outcome} {v.cause.code}" if v.cause else v.outcome for v in verdicts]
    return found[0], found[1]


BOTH = ("broken held-back", "broken held-back")
LATER = ("broken held-back", "holds")
CLUMPS = ("broken coalesced", "holds")
BURST = ("broken burst", "broken burst")
WELL = ("holds", "holds")
SLOW = made(100, 60.0, 200.0)

HELD = [
    ("llama.cpp#20872: nginx, a buffer of 4 KB", hold(made(), 0, 25), BOTH),
    ("geerlingguy/drupal-vm#532: mod_proxy_fcgi, the first 4,096 bytes", hold(made(72), 0, 44), BOTH),
    ("aspnet/IISIntegration#7: IIS, 8 KB", hold(made(120), 0, 80), BOTH),
    ("expo/expo#32950: the first 500 characters", hold(made(), 0, 6), BOTH),
    ("honojs/hono#1678: Lambda starts after 1.5 s", hold(made(100), 0, 50), BOTH),
    ("confidential-dot-ai/c8s#140: nginx at 5.5 ms a token", hold(made(200, 5.5, 22.0), 0, 49), BOTH),
    ("noonghunna/club-3090#72: a parser falls silent in the middle", hold(SLOW, 30, 40), LATER),
    ("a hold in the middle", hold(made(), 16, 16), LATER),
    ("a hold at the end", hold(made(), 32, 16), LATER),
    ("all but a trickle at the start", hold(made(), 4, 44), LATER),
    ("two heaps", [*[770.0] * 24, *[1490.0] * 24], BOTH),
    ("Kludex/starlette#2753: two buffers, and a rest", clumped(made(100), 45), CLUMPS),
    ("dstackai/dstack#4269: the gateway's 16 KB, 200 tokens", clumped(made(200, 250.0), 65), CLUMPS),
    ("dstackai/dstack#4269: 60 tokens", [made(60, 250.0)[-1]] * 60, BURST),
    ("icing/mod_h2#147: HTTP/2, big blocks with pauses", clumped(made(200), 40), CLUMPS),
    ("a released buffer that trickles", hold(made(), 0, 24, 1.0), BOTH),
    ("one that trickles slowly", hold(made(), 0, 24, 3.5), BOTH),
    ("one that comes in two flushes", [*hold(made(), 0, 24)[:20], *[745.0] * 4, *made()[24:]], BOTH),
]  # fmt: skip


@pytest.mark.parametrize("server_tells", [True, False], ids=["its time", "no time"])
@pytest.mark.parametrize(("report", "moments", "expected"), HELD, ids=[row[0] for row in HELD])
def test_what_is_held_is_named(
    report: str, moments: list[float], expected: tuple[str, str], server_tells: bool
) -> None:
    assert report
    beat_ms = {"dst": 250.0, "con": 5.5, "noo": 60.0}.get(report[:3], 30.0)
    timeline = stream(moments, told_ms=beat_ms * len(moments) if server_tells else None)
    assert told(timeline) == expected


@pytest.mark.parametrize("count", [4, 6, 8, 12, 16, 24, 32, 40])
@pytest.mark.parametrize("told_ms", [48 * 30.0, None])
def test_a_hold_at_the_start_says_what_it_made(count: int, told_ms: float | None) -> None:
    timeline = stream(hold(made(), 0, count), told_ms=told_ms, size_bytes=90)
    found = held.measure(timeline)
    assert found.holds[0].count == count
    assert found.where == "at the start"
    assert found.held_ms[0] == pytest.approx((count - 1) * 30.0, rel=0.05)
    assert found.held_ms[count - 1] == pytest.approx(0.0, abs=1.0)
    assert all(one >= other for one, other in itertools.pairwise(found.held_ms[:count]))
    cause = causes.hold(timeline)
    assert cause is not None
    whose = "the server's" if told_ms else "the stream's"
    for words in (
        f"{count} of 48 pieces came together at the start",
        f"at {whose} own beat of 30 ms a piece",
        f"(here {90 * count:,} bytes)",
        "after about 50 ms",
        "X-Accel-Buffering: no",
    ):
        assert words in cause.sentence


def test_every_piece_of_a_window_that_slides_is_late() -> None:
    """stanfordnlp/dspy#8907: the last ten are always kept. Only the server's time shows it: without,
    so many may have been made at once."""
    moments = lagging(made(64), 10)
    timeline = stream(moments, told_ms=64 * 30.0)
    assert told(timeline) == BOTH
    assert held.measure(timeline).where == "at the end"
    assert min(held.measure(timeline).held_ms[:54]) > 0.8 * 300.0
    assert told(stream(moments)) == WELL
    # a hold at the end makes no other piece late
    assert told(stream(hold(made(), 32, 16), told_ms=48 * 30.0)) == LATER


def test_what_was_merged_while_it_waited() -> None:
    words = [WORD * 25, *[WORD] * 23]
    timeline = stream([770.0, *made()[25:]], words)
    assert told(timeline) == BOTH
    assert told(replace(timeline, timings={"predicted_n": 48, "predicted_ms": 1440.0})) == BOTH
    assert told(replace(timeline, timings={"predicted_n": 48})) == BOTH
    # a piece of one token, however long, by the server's count
    assert told(replace(timeline, timings={"predicted_n": 24})) == WELL
    # sooner than it can be made: the template's own words
    assert told(stream([110.0, *made(23, 30.0, 140.0)], words)) == WELL


def drafts(seed: int, beat_ms: float, sizes: Sequence[int], rounds: int = 30) -> list[float]:
    """Some tokens at once a round."""
    draw = random.Random(seed)
    return [300.0 + beat_ms * i for i in range(rounds) for _ in range(draw.choice(sizes))]


def copied() -> list[float]:
    """Six rounds of one token and one of ten, four times; others' prefill before the last two."""
    moments: list[float] = []
    now = 300.0
    for pause_ms in (0.0, 0.0, 450.0, 450.0):
        for size in (1, 1, 1, 1, 1, 1, 10):
            now += 45.0 + (pause_ms if size == 10 else 0.0)
            moments += [now] * size
    return moments


def growing(count: int, first_ms: float, last_ms: float) -> list[float]:
    gaps = (first_ms + (last_ms - first_ms) * i / count for i in range(count))
    return [100.0 + t for t in itertools.accumulate(gaps)]


def paused(moments: Sequence[float], at: int, pause_ms: float) -> list[float]:
    return [t if i < at else t + pause_ms for i, t in enumerate(moments)]


HEALTHY = [
    ("piece by piece", stream(made())),
    ("a fast model", stream(made(64, 0.4, 20.0), told_ms=25.6)),
    ("a fast model that stops for a moment", stream(paused(made(64, 0.4, 3000.0), 40, 60.0))),
    ("a slow model", stream(made(32, 250.0, 9000.0), told_ms=8000.0)),
    ("one piece", stream([900.0])),
    ("three pieces in one read", stream([900.0] * 3)),
    ("a context that grows", stream(growing(200, 10.0, 40.0), told_ms=5000.0)),
    ("prefill of others in between", stream(paused(paused(made(), 10, 900.0), 30, 2500.0))),
    ("others begin to ask: five times slower", stream([*made(40, 10.0), *made(40, 50.0, 500.0)])),
    ("the same, by the server's mean", stream([*made(40, 10.0), *made(40, 50.0, 500.0)], told_ms=2400.0)),
    ("others are done: five times faster", stream([*made(40, 50.0), *made(40, 10.0, 2060.0)])),
    ("llama.cpp's drafts", stream(drafts(1, 40.0, (1, 2, 5)), timings={"draft_n": 60})),
    ("drafts of 16 at once", stream(drafts(2, 90.0, (1, 17)), timings={"draft_n": 400})),
    ("drafts that nobody tells of", stream(drafts(3, 30.0, (1, 2, 3)))),
    ("copied text: ten at once, now and then", stream(drafts(4, 45.0, (1, 1, 1, 1, 10)))),
    ("the same, and pauses before some of them", stream(copied())),
    ("a first round of drafts that is larger", stream([500.0] * 5 + [500.0 + 80.0 * i for i in range(1, 20) for _ in "ab"])),
    ("others begin to ask: three times slower", stream([*made(40, 3.9, 500.0), *made(40, 12.0, 670.0)])),
    ("vllm-project/vllm#7000: eight at once at 5 ms a token", stream(clumped(made(64, 5.0), 8))),
    ("vllm-project/vllm#45678: accepted drafts in one piece", stream(made(30, 40.0), ["word " * (1 + i % 4) for i in range(30)], tokens=75)),
    ("pieces of eight tokens", stream(made(24, 240.0), [WORD * 8] * 24, tokens=192, told_ms=5760.0)),
    ("jundot/omlx#103: a marker's length is kept", stream(lagging(made(), 3), told_ms=1440.0)),
    ("tool calls before text", stream(made(20, 30.0, 1000.0), token_ms=tuple(made(52, 30.0, 70.0)))),
    ("reasoning in one piece before the answer", stream(made(20, 10.0, 9000.0), told_ms=9000.0, tokens=900, token_ms=(100.0, *made(20, 10.0, 9000.0)))),
    ("reasoning that is not shown", stream(made(50, 8.0, 6000.0), told_ms=5520.0, tokens=690)),
    ("a clock in seconds", stream(made(), told_ms=1.44)),
    ("a clock three times too fast", stream(made(), told_ms=3 * 1440.0)),
    ("a cache of responses that stops once", stream([*made(24, 0.1, 5.0), *made(24, 0.1, 100.0)])),
    ("paced by a gateway, slower than it was made", stream(made(48, 20.0), told_ms=48 * 4.0)),
    ("a last piece that was late", stream([*made(47), 1490.0, ])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "timeline"), HEALTHY, ids=[row[0] for row in HEALTHY])
def test_what_comes_as_it_is_made_holds(kind: str, timeline: Timeline) -> None:
    assert kind
    assert causes.hold(timeline) is None


def test_reasoning_waits_like_any_other_token() -> None:
    """The first text was made long after what was held; the reasoning before it was held."""
    moments = hold(made(96), 0, 30)
    timeline = stream(moments[40:], token_ms=tuple(moments))
    assert told(timeline) == LATER
    timeline = stream(moments[20:], token_ms=tuple(moments))
    assert told(timeline)[1] == "broken held-back"


def test_far_more_than_a_draft_is_a_hold() -> None:
    moments = hold(made(96), 0, 48)
    drafted = stream(moments, timings={"draft_n": 60})
    assert told(drafted) == BOTH
    small = stream(hold(made(96), 0, 24), timings={"draft_n": 60})
    assert told(small) == WELL


def test_a_clock_that_goes_wrong_hides_no_hold_and_makes_none_longer() -> None:
    moments = hold(made(48, 30.0, 2000.0), 0, 24)
    for told_ms in (1.44, 3 * 1440.0):
        found = held.measure(stream(moments, told_ms=told_ms))
        assert found.source == "the stream's"
        assert found.held_ms[0] == pytest.approx(690.0, rel=0.05)


def test_what_disturbs_nobody_is_no_hold() -> None:
    assert told(stream(hold(made(48, 3.0), 0, 10))) == WELL  # 27 ms
    assert told(stream(hold(made(), 0, 3))) == WELL  # two beats
    assert told(stream(hold(made(), 20, 5))) == WELL  # a tenth, in the middle
    assert told(stream(hold(made(48, 30.0, 4000.0), 0, 8))) == WELL  # 210 ms of 4,210


def test_a_late_reader_blames_nobody() -> None:
    timeline = stream(hold(made(), 0, 25), cpu_wait_ms=400.0)
    assert told(timeline) == ("inconclusive reader-behind",) * 2
    assert told(replace(timeline, cpu_wait_ms=20.0)) == BOTH


def test_clumps_are_told_beside_the_time_that_they_made() -> None:
    verdict = ttft_below_total(stream(clumped(made(64, 26.0, 30.0), 8)))
    assert verdict.outcome == "holds"
    assert verdict.numbers.endswith("; first text held back in 1 of 1, for 182 ms")


def test_a_few_of_five_are_told_too() -> None:
    good, late = stream(made()), stream(hold(made(), 0, 25))

    def ttft(*timelines: Timeline) -> Verdict:
        runs = tuple(TtftRun(t.ttft_ms or 0.0, t.total_ms or 0.0, 48) for t in timelines)
        p50 = (
            statistics.median(column) for column in zip(*((r.ttft_ms, r.total_ms) for r in runs))
        )
        return judge_ttft(TtftResult(Ttft(runs, *p50), timelines))[0]

    few = ttft(good, good, good, late, late)
    assert few.outcome == "holds"
    assert few.numbers.endswith("; first text held back in 2 of 5, for 720 ms")
    most = ttft(good, good, late, late, late)
    assert most.cause is not None
    assert (most.outcome, most.cause.code) == ("broken", "held-back")
    assert "held back" not in ttft(*[good] * 5).numbers


def test_a_sentence_that_a_hold_made() -> None:
    words = ["One. ", "Two "] * 24

    def judged(moments: list[float], ends_at: int) -> str:
        texts = ["word "] * 48
        texts[ends_at] = "end. "
        timeline = stream(moments, texts)
        text = timeline.text
        cut = text[: text.index(".") + 1]
        times = timeline.pieces[0].t_ms, timeline.pieces[ends_at].t_ms, moments[-1]
        result = SentenceResult(Sentence(*times, cut, text), timeline)
        verdict = judge_sentence(result)[0]
        return f"{verdict.outcome} {verdict.cause.code}" if verdict.cause else verdict.outcome

    assert words
    assert judged(made(), 20) == "holds"
    assert judged(hold(made(), 0, 20), 30) == "broken held-back"  # its start
    assert judged(hold(made(), 16, 20), 17) == "broken held-back"  # its end
    assert judged(hold(made(), 16, 20), 35) == "holds"  # the last of those held waits no longer
    assert judged(hold(made(), 16, 20), 10) == "holds"
