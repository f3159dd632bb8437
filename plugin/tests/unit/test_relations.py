"""Every relation seen to hold and seen to break, with the numbers in its words."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from rows import told

from pytest_llm_latency.evidence.artifacts import (
    Cache,
    CacheLeg,
    Cancel,
    Chunk,
    PrefillRow,
    Report,
    Sentence,
    Ttft,
    TtftRun,
)
from pytest_llm_latency.evidence.recording import Reply
from pytest_llm_latency.evidence.timeline import Piece, Timeline
from pytest_llm_latency.steps.cache.judge import judge_cache
from pytest_llm_latency.steps.cache.result import CacheResult
from pytest_llm_latency.steps.cancel.case import CancelCase
from pytest_llm_latency.steps.cancel.judge import judge_cancel
from pytest_llm_latency.steps.cancel.result import CancelResult
from pytest_llm_latency.steps.prefill.judge import judge_prefill
from pytest_llm_latency.steps.prefill.result import PrefillResult
from pytest_llm_latency.steps.report.judge import judge_report
from pytest_llm_latency.steps.report.result import ReportResult
from pytest_llm_latency.steps.sentence.judge import judge_sentence
from pytest_llm_latency.steps.sentence.result import SentenceResult
from pytest_llm_latency.steps.server.judge import judge_server
from pytest_llm_latency.steps.server.result import ServerResult
from pytest_llm_latency.steps.sse.judge import judge_sse
from pytest_llm_latency.steps.sse.result import SseResult
from pytest_llm_latency.steps.ttft.judge import judge_ttft, runs_differ
from pytest_llm_latency.steps.ttft.result import TtftResult
from pytest_llm_latency.verdicts.blame import told_apart
from pytest_llm_latency.verdicts.causes import hold
from pytest_llm_latency.verdicts.pairs import cached_below_uncached, long_above_short
from pytest_llm_latency.verdicts.prompts import cache_miss, partial_hit_lost, parting
from pytest_llm_latency.verdicts.stream import comes_as_made, ttft_below_total
from pytest_llm_latency.verdicts.verdict import Verdict


def answer(
    ttft: float = 100.0,
    gap: float = 20.0,
    count: int = 20,
    *,
    prompt_n: int = 100,
    cache_n: int = 0,
    generated: float = 380.0,
) -> Timeline:
    """An answer whose pieces come `gap` ms apart."""
    pieces = tuple(Piece(ttft + gap * i, "w ") for i in range(count))
    timings = {"prompt_n": prompt_n, "cache_n": cache_n, "predicted_ms": generated}
    return Timeline(
        pieces=pieces,
        total_ms=pieces[-1].t_ms + 1,
        timings=timings,
        finish_reason="stop",
        done=True,
    )


def outcomes(verdicts: list[Verdict]) -> set[str]:
    return {verdict.outcome for verdict in verdicts}


def broken(verdicts: list[Verdict]) -> list[tuple[str, str]]:
    """(relation, cause code) of what does not hold."""
    return [(v.relation, v.cause.code if v.cause else "") for v in verdicts if v.outcome != "holds"]


def reply(body: str, status: int = 200) -> Reply:
    return Reply(status, body.encode(), 1.0)


PROPS = '{"model_path": "m", "total_slots": 1, "default_generation_settings": {"n_ctx": 8192}}'


def test_server() -> None:
    ok = reply('{"status": "ok"}')
    assert outcomes(judge_server(ServerResult(ok, reply(PROPS)))) == {"holds"}
    verdicts = judge_server(ServerResult(reply('{"status": "error"}'), reply(PROPS)))
    assert broken(verdicts) == [("/health: status is ok", "server-facts")]
    for changed in ('"n_ctx": 0', '"n_ctx": "8192"', '"n_ctx": null'):
        props = reply(PROPS.replace('"n_ctx": 8192', changed))
        assert broken(judge_server(ServerResult(ok, props)))[0][1] == "server-facts"
    # TabbyAPI's /props is like llama.cpp's, and names no model
    other = reply(PROPS.replace('"model_path": "m", ', ""))
    assert outcomes(judge_server(ServerResult(ok, other))) == {"holds", "not measurable"}
    for bad in (
        "degraded",
        "not_ready",
        "NOT_SERVING",
        "NotReady",
        "OUT_OF_SERVICE",
        "unready",
        "LOADING",
        "initializing",
        "stopped",
        "",
        "0",
        "500",
        "no",
    ):
        verdicts = judge_server(ServerResult(reply(f'{{"status": "{bad}"}}'), reply(PROPS)))
        assert verdicts[0].outcome == "broken", bad
    for status in (404, 405, 501):
        verdicts = judge_server(ServerResult(ok, reply("nothing here", status)))
        assert outcomes(verdicts) == {"holds", "not measurable"}
    for refused in (reply('{"status": "error"}', 500), reply("no", 503), reply('{"status": "no"}')):
        verdicts = judge_server(ServerResult(refused, reply(PROPS)))
        assert [code for _, code in broken(verdicts)] == ["server-facts"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "OK",
        '{"status": "healthy"}',
        '{"uptime": 3}',
        '{"status": "UP"}',
        '{"status": true}',
        '{"status": "running"}',
        '{"status": 200}',
        '{"status": {"state": "ok", "errors": []}}',
        '{"status": "SERVING"}',
        '{"status": "ok-no-errors"}',
        '{"status": "well"}',
    ],
)
def test_other_servers_ways_of_being_healthy(body: str) -> None:
    assert judge_server(ServerResult(reply(body), reply(PROPS)))[0].outcome == "holds"


@pytest.mark.parametrize(
    "health",
    [
        reply("", 404),
        reply('{"error": "Unexpected endpoint"}'),
        reply(" <!doctype html>"),
        reply("{}", 401),
        reply('{"message": "Missing Authentication Token"}', 403),
        reply("", 302),
    ],
)
def test_a_server_without_health_is_there_if_it_lists_its_models(health: Reply) -> None:
    listed, no_props = reply('{"data": [{"id": "m"}]}'), reply('{"error": "Unexpected endpoint"}')
    verdicts = judge_server(ServerResult(health, no_props, listed))
    assert [v.outcome for v in verdicts] == ["holds", "not measurable"]
    verdicts = judge_server(ServerResult(health, no_props, reply("", 404)))
    assert [v.outcome for v in verdicts] == ["not measurable"] * 2
    for listed in (reply("", 500), reply("{}"), reply('{"error": "x"}', 500)):
        assert judge_server(ServerResult(health, no_props, listed))[0].outcome == "broken"


RAW = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"w "}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"w "}}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("raw", [RAW, RAW.replace(b"\n", b"\r\n")])
def test_sse(raw: bytes) -> None:
    chunks = (Chunk(1.0, "w "), Chunk(2.0, "w "))
    result = SseResult(raw, chunks, answer(count=2))
    assert outcomes(judge_sse(result)) == {"holds"}
    for wrong in (chunks[:1], (*chunks, chunks[0]), (Chunk(1.0, "w"), chunks[1]), ()):
        assert ("the pieces equal the raw content, piece for piece", "pieces-differ") in broken(
            judge_sse(replace(result, chunks=wrong))
        )
    fallen = replace(result, chunks=(chunks[1], chunks[0]))
    assert ("t_ms never falls", "time-falls") in broken(judge_sse(fallen))
    cut = replace(result, timeline=replace(result.timeline, done=False, finish_reason=None))
    assert ("the stream has its end", "cut-short") in broken(judge_sse(cut))
    failed = replace(result, timeline=replace(result.timeline, error="T"))
    assert ("the stream has its end", "stream-error") in broken(judge_sse(failed))
    no_done = replace(result, timeline=replace(result.timeline, done=False))
    assert outcomes(judge_sse(no_done)) == {"holds"}


def test_a_burst_is_no_stream() -> None:
    assert ttft_below_total(answer()).outcome == "holds"
    verdict = ttft_below_total(answer(ttft=3000.0, gap=0.05, generated=2900.0))
    assert verdict.outcome == "broken"
    assert verdict.cause is not None
    assert verdict.cause.code == "burst"
    assert "20 pieces" in verdict.cause.sentence
    assert "after 3.0 s" in verdict.cause.sentence
    assert "proxy_buffering off" in verdict.cause.sentence


def test_a_burst_is_seen_without_the_server_s_times() -> None:
    timeline = replace(answer(ttft=3000.0, gap=0.5), timings={}, jitter_ms=1.0)
    assert broken([ttft_below_total(timeline)]) == [("ttft < total", "burst")]
    # piece by piece, it is a fast generation after a long prefill
    piecewise = replace(timeline, jitter_ms=0.1)
    assert ttft_below_total(piecewise).outcome == "holds"
    # a long prefill before a fast generation is none
    fast = answer(ttft=3000.0, gap=0.5, generated=10.0)
    assert ttft_below_total(fast).outcome == "holds"


def clumps(gap: float, size: int, generated: float) -> Timeline:
    pieces = tuple(Piece(100.0 + gap * (i // size), "w") for i in range(64))
    return replace(answer(generated=generated), pieces=pieces, total_ms=1800.0)


def uneven(gap: float, every_eighth: float, jitter_ms: float) -> Timeline:
    """64 pieces, every eighth a little later than the others."""
    times = itertools.accumulate(every_eighth if i % 8 == 0 else gap for i in range(64))
    pieces = tuple(Piece(100.0 + t_ms, "w") for t_ms in times)
    return replace(answer(generated=530.0), pieces=pieces, total_ms=700.0, jitter_ms=jitter_ms)


def test_clumps_are_no_burst() -> None:
    timeline = clumps(210.0, 8, 1700.0)
    assert ttft_below_total(timeline).outcome == "holds"
    verdict = comes_as_made(timeline)
    assert broken([verdict]) == [("the pieces come as they are made", "coalesced")]
    assert verdict.numbers == "64 pieces in 8 arrivals"
    uncounted = replace(timeline, timings={})
    assert comes_as_made(uncounted).outcome == "broken"


@pytest.mark.parametrize(
    "timeline",
    [
        answer(),
        clumps(210.0, 1, 13000.0),  # one by one
        clumps(60.0, 2, 1900.0),  # two tokens of a speculative decoder
        clumps(4.0, 8, 30.0),  # a fast server: its packets fill by themselves
        replace(clumps(210.0, 8, 1700.0), timings={"draft_n": 60}),  # drafted and accepted
        uneven(8.0, 10.0, jitter_ms=9.0),  # no pause to speak of: the jitter makes the clumps
    ],
)
def test_these_come_as_they_are_made(timeline: Timeline) -> None:
    assert comes_as_made(timeline).outcome == "holds"


def test_a_reader_that_was_late_itself_blames_nobody() -> None:
    for timeline in (answer(ttft=3000.0, gap=0.05, generated=300.0), clumps(210.0, 8, 1700.0)):
        late = replace(timeline, cpu_wait_ms=600.0)
        verdict = comes_as_made(late)
        assert (verdict.outcome, verdict.cause and verdict.cause.code) == (
            "inconclusive",
            "reader-behind",
        )
        assert comes_as_made(replace(late, cpu_wait_ms=5.0)).outcome == "broken"


def test_one_burst_of_five_is_no_rule() -> None:
    bursts = [answer(ttft=3000.0, gap=0.05, generated=2900.0)]
    good = ttft_result(500, 501, 502, 503, 504)
    few = replace(good, timelines=(*good.timelines[2:], *bursts * 2))
    assert outcomes(judge_ttft(few)) == {"holds"}
    equal = replace(few, ttft=ttft_result(500, 501, 102, 503, 504).ttft)
    assert "inconclusive" in outcomes(judge_ttft(equal))
    most = replace(good, timelines=(*good.timelines[3:], *bursts * 3))
    assert broken(judge_ttft(most)) == [("ttft < total in every run", "burst")]


def test_all_in_one_read_is_not_below() -> None:
    timeline = replace(answer(count=1), total_ms=100.0)
    assert broken([ttft_below_total(timeline)]) == [("ttft < total", "one-piece")]
    one_token = replace(timeline, timings={"predicted_n": 1})
    assert ttft_below_total(one_token).outcome == "inconclusive"
    # a short answer in one read may be a late reader's
    short = replace(answer(count=3, gap=0.0, generated=5.0), total_ms=100.0)
    assert ttft_below_total(short).outcome == "inconclusive"


def test_reasoning_before_a_short_answer_is_no_burst() -> None:
    timeline = answer(ttft=10_000.0, gap=10.0, generated=10_200.0)
    assert ttft_below_total(timeline).outcome == "broken"
    reasoned = replace(timeline, token_ms=(100.0,))
    assert ttft_below_total(reasoned).outcome == "holds"
    assert comes_as_made(replace(reasoned, timings={})).outcome == "holds"


def ttft_result(*totals: float) -> TtftResult:
    runs = tuple(TtftRun(100.0 + i, total, 20) for i, total in enumerate(totals))
    return TtftResult(Ttft(runs, 102.0, sorted(totals)[2]), (answer(),) * 5)


def test_ttft() -> None:
    good = ttft_result(500, 501, 502, 503, 504)
    assert outcomes(judge_ttft(good)) == {"holds"}
    equal = ttft_result(500, 501, 102, 503, 504)
    assert ("ttft < total in every run", "one-piece") in broken(judge_ttft(equal))
    moved = replace(good, ttft=replace(good.ttft, ttft_p50=102.5))
    assert broken(judge_ttft(moved)) == [("the p50 are the medians", "not-the-median")]


def prefill_result(*rows: tuple[int | None, float]) -> PrefillResult:
    made = [PrefillRow(d, n, 1.0, t) for d, (n, t) in zip((0, 4, 12), rows)]
    legs = {row.docs: [answer(row.ttft_ms, prompt_n=row.prompt_n or 0)] for row in made}
    return PrefillResult(tuple(made), legs)


def test_prefill() -> None:
    good = prefill_result((60, 100.0), (500, 900.0), (1300, 4000.0))
    assert outcomes(told(judge_prefill, good)) == {"holds"}
    flat = prefill_result((60, 100.0), (500, 900.0), (500, 901.0))
    assert broken(told(judge_prefill, flat)) == [
        ("prompt_n grows with the documents (0, 4, 12)", "prompt-not-growing")
    ]
    busy = prefill_result((60, 5000.0), (500, 900.0), (1300, 4000.0))
    assert broken(told(judge_prefill, busy)) == [
        ("ttft grows with the documents (0, 4, 12)", "prefill-time")
    ]
    assert outcomes(told(judge_prefill, busy)) == {"holds", "inconclusive"}
    by_hand = replace(busy, legs={})
    assert outcomes(told(judge_prefill, by_hand)) == {"holds", "broken"}
    uncounted = replace(prefill_result((None, 100.0), (60, 900.0), (None, 4000.0)), legs={})
    assert outcomes(told(judge_prefill, uncounted)) == {"not measurable", "holds"}
    falling = replace(prefill_result((None, 900.0), (None, 500.0), (None, 100.0)), legs={})
    assert outcomes(told(judge_prefill, falling)) == {"not measurable", "broken"}
    warm = replace(good, legs={0: [answer(prompt_n=100, cache_n=900)]})
    assert outcomes(told(judge_prefill, warm)) == {"inconclusive"}


def with_texts(result: PrefillResult, *characters: int, **usage: int) -> PrefillResult:
    legs = {
        docs: [replace(leg, prompt_characters=long, usage=usage) for leg in legs]
        for (docs, legs), long in zip(result.legs.items(), characters)
    }
    return replace(result, legs=legs)


def test_a_prompt_must_grow_as_its_text_does() -> None:
    """Two salts differ by some tokens: such counts of a prompt that is cut off grow by chance."""
    by_chance = prefill_result((142, 57.0), (206, 75.0), (212, 120.0))
    assert outcomes(told(judge_prefill, by_chance)) == {"holds"}  # so little text may be no more
    cut_off = told(judge_prefill, with_texts(by_chance, 120, 520, 1320))
    assert broken(cut_off) == [
        ("prompt_n grows with the documents (0, 4, 12)", "prompt-not-growing")
    ]
    assert "had 212 tokens (800 more characters) against 206" in cut_off[0].cause.sentence
    whole = prefill_result((142, 57.0), (206, 75.0), (256, 120.0))
    assert outcomes(told(judge_prefill, with_texts(whole, 120, 520, 1320))) == {"holds"}


def test_a_longer_prompt_of_which_less_is_processed() -> None:
    """Most of it was in the cache: it has more tokens, and costs no more."""
    short, long = answer(prompt_n=100), answer(prompt_n=50, cache_n=1000)
    assert long_above_short(short, long).outcome == "broken"


def test_hidden_reasoning_hides_prefill() -> None:
    counted = prefill_result((60, 5000.0), (500, 900.0), (1300, 4000.0))
    uncounted = prefill_result((None, 500.0), (None, 501.0), (None, 502.0))
    for result, timings in ((counted, {}), (uncounted, None)):
        legs = {
            docs: [
                replace(leg, usage=REASONED, timings=leg.timings if timings == {} else {})
                for leg in rounds * 6
            ]
            for docs, rounds in result.legs.items()
        }
        verdicts = told(judge_prefill, replace(result, legs=legs))
        assert [
            (v.outcome, v.cause.code)
            for v in verdicts
            if v.cause and v.relation.startswith("ttft grows")
        ] == [("inconclusive", "reasoning-hides-prefill")]


def test_a_flat_prompt_s_time_proves_nothing() -> None:
    """Where the counts do not grow, time that does not follow is no second fault."""
    flat = told(judge_prefill, prefill_result((206, 57.0), (206, 58.0), (206, 56.0)))
    assert [(v.outcome, v.cause.code) for v in flat if v.cause] == [
        ("broken", "prompt-not-growing"),
        ("inconclusive", "prompt-not-growing"),
    ]


def test_a_prompt_whose_length_alone_is_known_must_grow_too() -> None:
    """Usage without cached tokens: what was processed is not known, and times decide."""
    uncounted = prefill_result((None, 57.0), (None, 75.0), (None, 120.0))
    legs = {
        docs: [replace(leg[0], timings={}, prompt_characters=100 * docs)]
        for docs, leg in uncounted.legs.items()
    }

    def of(*totals: int) -> list[Verdict]:
        used = {
            docs: [replace(leg[0], usage={"prompt_tokens": total})]
            for (docs, leg), total in zip(legs.items(), totals)
        }
        return told(judge_prefill, replace(uncounted, legs=used))

    assert broken(of(142, 206, 212))[0] == (
        "prompt_n grows with the documents (0, 4, 12)",
        "prompt-not-growing",
    )
    assert "prompt-not-growing" not in [v.cause.code for v in of(142, 206, 300) if v.cause]
    # a field that is not counted, but filled
    assert "prompt-not-growing" not in [v.cause.code for v in of(0, 0, 0) if v.cause]


def cache_result(
    first: tuple[int, int],
    second: tuple[int, int],
    changed: tuple[int, int],
    ttft_ms: tuple[float, ...] = (),
) -> CacheResult:
    """Legs as (prompt_n, cache_n); times follow the tokens, where none are given."""
    counts = first, second, changed
    times_ms = ttft_ms or [10.0 + n for n, _ in counts]
    legs = {
        name: answer(ttft=time_ms, prompt_n=n, cache_n=reused)
        for name, (n, reused), time_ms in zip(
            ("first", "second", "changed_prefix"), counts, times_ms
        )
    }
    cache = Cache(**{name: CacheLeg(leg.prompt_n, leg.ttft_ms or 0) for name, leg in legs.items()})
    return CacheResult(cache, {name: [leg] for name, leg in legs.items()})


def codes(result: CacheResult) -> set[str]:
    return {code for _, code in broken(told(judge_cache, result))}


def test_cache() -> None:
    assert codes(cache_result((1300, 0), (1, 1299), (1310, 0))) == set()
    assert codes(cache_result((1300, 0), (1300, 0), (1310, 0))) == {"cache-never-hits"}
    assert codes(cache_result((1300, 0), (1, 1299), (1, 1309))) == {"changed-prefix-hit"}
    # what is hit in part only is no cold leg, though it costs more than the cached one
    partly = cache_result((1300, 0), (1, 1299), (40, 1270))
    assert codes(partly) == {"changed-prefix-hit"}
    assert outcomes(told(judge_cache, partly)) == {"inconclusive"}
    # a cold leg that was warm proves nothing, above all not that the cache is broken
    warm = cache_result((1, 1299), (1, 1299), (1310, 0))
    assert codes(warm) == {"cold-leg-was-warm"}
    assert outcomes(told(judge_cache, warm)) == {"inconclusive"}


@pytest.mark.parametrize("times_ms", [(320.0, 321.0), (397.0, 390.0)])
def test_on_a_dead_cache_a_hair_s_breadth_says_nothing(times_ms: tuple[float, float]) -> None:
    """Neither that the times hold, nor that they are broken: the counts say what is."""
    second_ms, cold_ms = times_ms
    result = cache_result((1300, 0), (1300, 0), (1310, 0), ttft_ms=(cold_ms, second_ms, cold_ms))
    by_relation = {verdict.relation: verdict.outcome for verdict in told(judge_cache, result)}
    assert by_relation["second < first in prompt_n"] == "broken"
    assert by_relation["second < first in ttft"] == "inconclusive"
    assert by_relation["second < changed_prefix in ttft"] == "inconclusive"


def test_cache_by_time() -> None:
    slow = cache_result((1300, 0), (1, 1299), (1310, 0), (1310.0, 9999.0, 1320.0))
    assert codes(slow) == {"cache-time"}
    assert outcomes(told(judge_cache, slow)) == {"holds", "inconclusive"}


REASONED = {"completion_tokens_details": {"reasoning_tokens": 300}}


def test_reasoning_is_no_prefill() -> None:
    """It begins when the prompt is done with, and is as long as it likes."""
    legs = {
        docs: [replace(answer(9000.0 - 100 * docs, prompt_n=n), token_ms=(first_ms,))]
        for docs, n, first_ms in ((0, 60, 100.0), (4, 500, 900.0), (12, 1300, 4000.0))
    }
    rows = prefill_result((60, 9000.0), (500, 8600.0), (1300, 7800.0)).rows
    verdicts = told(judge_prefill, PrefillResult(rows, legs))
    assert outcomes(verdicts) == {"holds"}
    assert "100 ms, 900 ms, 4,000 ms (to the first token, of reasoning)" in [
        v.numbers for v in verdicts
    ]
    dead = timed_cache(*[(4.0 + n / 100, 3.99, 4.0) for n in range(6)])
    hidden = {
        name: [replace(leg, usage=REASONED) for leg in legs] for name, legs in dead.legs.items()
    }
    assert outcomes(told(judge_cache, replace(dead, legs=hidden))) == {"inconclusive"}
    assert codes(replace(dead, legs=hidden)) == {"reasoning-hides-prefill"}


def test_a_field_that_is_filled_and_not_counted() -> None:
    """cached_tokens is always 0, and the times show a hit: which is right nobody can say."""
    rounds = timed_cache(*[(4.0, 0.07, 4.1)] * 4)
    usage = {"prompt_tokens": 1300, "prompt_tokens_details": {"cached_tokens": 0}}
    legs = {name: [replace(leg, usage=usage) for leg in legs] for name, legs in rounds.legs.items()}
    cache = Cache(**{name: CacheLeg(1300, legs[name][0].ttft_ms or 0) for name in legs})
    result = replace(rounds, cache=cache, legs=legs)
    assert outcomes(told(judge_cache, result)) == {"inconclusive"}
    assert codes(result) == {"counts-against-times"}
    # where the times do not contradict them, the counts decide
    same = timed_cache(*[(4.0, 3.9, 4.1)] * 4)
    legs = {name: [replace(leg, usage=usage) for leg in legs] for name, legs in same.legs.items()}
    assert codes(replace(same, cache=cache, legs=legs)) == {"cache-never-hits"}
    assert timed_cache((1.8, 1.0, 1.8), (1.8, 1.0, 1.8)).hits_by_time() is None  # not yet
    assert timed_cache((4.0, 3.0, 4.1), (4.0, 3.1, 4.1)).hits_by_time() is False
    assert timed_cache((1.0, 0.45, 1.0), (1.0, 1.6, 1.0)).hits_by_time() is None  # a hiccup
    nothing = replace(answer(), timings={}, usage={"prompt_tokens": 0})
    assert nothing.prompt_total is None
    assert long_above_short(nothing, nothing).outcome == "inconclusive"
    zeros = {"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    assert replace(nothing, usage=zeros).prompt_n is None
    assert replace(nothing, timings={"prompt_n": 0, "cache_n": 0}).prompt_n is None


def test_the_same_text_at_once_is_a_replay() -> None:
    made = timed_cache(*[(2.0, 0.008, 2.01)] * 4)
    replays = [
        replace(leg, pieces=tuple(Piece(8.0 + i / 20, "w ") for i in range(20)))
        for leg in made.legs["second"]
    ]
    result = replace(made, legs={**made.legs, "second": replays})
    assert codes(result) == {"replayed-answer"}
    assert outcomes(told(judge_cache, made)) == {"holds"}  # made anew, at the same beat
    # by the server's clock, too, it is another answer's
    slow = {"prompt_n": 1300, "cache_n": 0, "prompt_ms": 1990.0}
    legs = {
        name: [replace(leg, timings=slow) for leg in rounds]
        for name, rounds in {**made.legs, "second": replays}.items()
    }
    cache = Cache(**{name: CacheLeg(1300, 1.0) for name in legs})
    assert codes(replace(result, cache=cache, legs=legs)) == {"clock-disagreement"}
    # what is generated within some milliseconds may come as soon again
    quick = [
        replace(leg, pieces=tuple(Piece(2000.0 + i, "w ") for i in range(20)))
        for leg in made.legs["first"]
    ]
    legs = {**made.legs, "first": quick, "second": replays}
    assert "replayed-answer" not in codes(replace(made, legs=legs))
    other = [replace(leg, pieces=(*leg.pieces, Piece(9.1, "!"))) for leg in replays]
    assert outcomes(told(judge_cache, replace(made, legs={**made.legs, "second": other}))) == {
        "holds"
    }


def test_without_counts_a_changed_front_that_hits_is_no_dead_cache() -> None:
    shifted = timed_cache(*[(2.0, 0.1, 0.101)] * 6)
    assert codes(shifted) == {"changed-prefix-hit"}
    words = [v.cause.sentence for v in told(judge_cache, shifted) if v.cause]
    assert words[0].startswith("its first text came as soon as that of the cached one")
    assert outcomes(told(judge_cache, shifted)) == {"holds", "inconclusive"}


def test_a_prompt_that_was_cached_elsewhere() -> None:
    dead = cache_result((1300, 0), (1300, 0), (1310, 0))
    hit = {**dead.legs, "changed_suffix": [answer(prompt_n=40, cache_n=1278)]}
    assert codes(replace(dead, legs=hit)) == {"cache-elsewhere"}
    missed = {**dead.legs, "changed_suffix": [answer(prompt_n=1318, cache_n=0)]}
    assert codes(replace(dead, legs=missed)) == {"cache-never-hits"}


def test_tokens_that_are_not_shown_take_time_of_their_own() -> None:
    """Reasoning that is taken out on the way; pieces of several tokens are no such thing."""
    stripped = answer(6000.0, 8.0, 50, generated=5520.0)
    stripped = replace(stripped, timings={**stripped.timings, "predicted_n": 690})
    assert hold(stripped) is None
    for count_, tokens, gap, generated in ((8, 64, 0.5, 400.0), (13, 64, 5.0, 2000.0)):
        merged = answer(generated + 50.0, gap, count_, generated=generated)
        merged = replace(
            merged,
            pieces=tuple(replace(p, text="w " * (2 * tokens // count_)) for p in merged.pieces),
            timings={**merged.timings, "predicted_n": tokens},
        )
        found = hold(merged)
        assert found is not None
        assert found.code == "burst"


def test_a_template_s_header_in_the_cache_is_cold() -> None:
    """Of a short prompt, it is more than a tenth."""
    assert not answer(prompt_n=64, cache_n=16).warm
    assert answer(prompt_n=1, cache_n=79).warm
    assert answer(prompt_n=10, cache_n=40).warm  # most of it is no header
    assert answer(prompt_n=1000, cache_n=300).warm
    assert not answer(prompt_n=1000, cache_n=100).warm
    header = prefill_result((64, 100.0), (500, 900.0), (1300, 4000.0))
    legs = {
        docs: [replace(leg[0], timings={"prompt_n": n, "cache_n": 16})]
        for (docs, leg), n in zip(header.legs.items(), (64, 500, 1300))
    }
    assert outcomes(told(judge_prefill, replace(header, legs=legs))) == {"holds"}


def test_counts_that_hold_are_confirmed_by_the_direction_of_rounds() -> None:
    """A network's delay hides most of a fast server's prefill; its direction it cannot turn."""
    counted = cache_result((1300, 0), (1, 1299), (1310, 0))
    legs = {
        name: [replace(counted.legs[name][0], pieces=answer(ttft + i % 3).pieces) for i in range(8)]
        for name, ttft in (("first", 330.0), ("second", 300.0), ("changed_prefix", 331.0))
    }
    assert outcomes(told(judge_cache, replace(counted, legs=legs))) == {"holds"}
    reused = legs["second"][0].timings  # counted as reused, and no time saved
    legs["second"] = [replace(leg, timings=reused) for leg in legs["first"]]
    claimed = replace(counted, legs=legs)
    assert outcomes(told(judge_cache, claimed)) == {"holds", "inconclusive"}
    assert codes(claimed) == {"cache-time"}
    numbers = [verdict.numbers for verdict in told(judge_cache, claimed) if verdict.cause]
    assert "effect x1.00, noise x1.00 in 8 rounds" in numbers[0]


def test_a_shared_front_is_no_hit() -> None:
    """A template's header, or all before a time stamp, is reused even where the cache is dead."""
    front = cache_result((1363, 0), (1263, 100), (1370, 0))
    assert codes(front) == {"cache-never-hits"}
    by_count = [v for v in told(judge_cache, front) if "prompt_n" in v.relation]
    assert [verdict.outcome for verdict in by_count] == ["broken", "broken"]
    cold, again = answer(prompt_n=1363), answer(prompt_n=1359, cache_n=4)
    assert cached_below_uncached(cold, again).outcome == "broken"


def test_one_round_confirms_only_where_it_is_clear() -> None:
    result = cache_result((1300, 0), (1, 1299), (1310, 0))
    near = {
        name: [replace(legs[0], pieces=answer(1000.0 - (name == "second")).pieces)]
        for name, legs in result.legs.items()
    }
    assert outcomes(told(judge_cache, replace(result, legs=near))) == {"holds", "inconclusive"}


def test_a_cache_miss_says_where_the_prompts_part() -> None:
    cold, again = answer(prompt_n=1300), answer(prompt_n=1300)
    changing = [replace(cold, prompt="v=1;" + "x" * 99), replace(again, prompt="v=2;" + "x" * 99)]
    verdict = cached_below_uncached(*changing)
    assert verdict.cause is not None
    assert verdict.cause.code == "prompts-differ"
    assert "character 3 ('v=1;xxx" in verdict.cause.sentence
    rewritten = cached_below_uncached(cold, answer(prompt_n=1307))
    assert rewritten.cause is not None
    assert rewritten.cause.code == "prompt-changed-on-the-way"


def test_a_part_that_is_the_same_and_was_not_reused() -> None:
    """A document changed in mid-prompt: the server lost the half before it."""
    half = "word " * 650
    cold = replace(answer(prompt_n=1300, cache_n=0), prompt=f"{half}one {half}")
    again = replace(answer(prompt_n=1299, cache_n=1), prompt=f"{half}two {half}")
    verdict = cached_below_uncached(cold, again)
    assert verdict.cause is not None
    assert verdict.cause.code == "partial-hit-lost"
    assert "about 650 of 1300 tokens (by characters) are the same, and 1 reused" in (
        verdict.cause.sentence
    )
    most = replace(answer(prompt_n=700, cache_n=600), prompt=again.prompt)
    assert partial_hit_lost(cold, most) is None
    little = replace(again, prompt="word one" + half + half)
    assert partial_hit_lost(cold, little) is None
    part = partial_hit_lost(cold, replace(answer(prompt_n=1100, cache_n=200), prompt=cold.prompt))
    assert part is not None
    assert part.sentence.startswith("about 1300 of 1300 tokens")


def test_a_prompt_that_is_rewritten_may_have_the_same_length_by_chance() -> None:
    """As a longer session's number does: one round that differs is enough, whichever it is."""
    same = cache_result((1300, 28), (1300, 28), (1310, 28))
    grown = cache_result((1300, 28), (1301, 28), (1310, 28))
    for rounds in ((grown, same), (same, grown)):
        legs = {name: [one.legs[name][0] for one in rounds] for name in same.legs}
        assert codes(replace(same, legs=legs)) == {"prompt-changed-on-the-way"}
    twice = {name: list(leg) * 2 for name, leg in same.legs.items()}
    assert codes(replace(same, legs=twice)) == {"cache-never-hits"}


def test_contradicting_counts_count_nothing() -> None:
    lying = replace(answer(prompt_n=1, cache_n=0), usage={"prompt_tokens": 1300})
    assert lying.counts_conflict == "prompt_n + cache_n = 1, prompt_tokens = 1300"
    assert (lying.prompt_n, lying.cache_n, lying.prompt_total, lying.cold) == (None,) * 4
    details = {"prompt_tokens_details": {"cached_tokens": 900}, "prompt_tokens": 1000}
    other = replace(answer(prompt_n=1000, cache_n=0), usage=details)
    assert other.counts_conflict == "cached_tokens = 900, cache_n = 0"
    near = replace(answer(prompt_n=1300, cache_n=0), usage={"prompt_tokens": 1301})
    assert near.counts_conflict is None
    verdict = cached_below_uncached(answer(prompt_n=1300), lying)
    assert verdict.outcome == "inconclusive"


def test_the_server_s_own_clock_must_agree() -> None:
    slow = {"cache_n": 0, "prompt_ms": 3800.0}
    result = prefill_result((60, 100.0), (500, 900.0), (1300, 4000.0))
    legs = {
        docs: [replace(leg[0], timings={**leg[0].timings, **slow})]
        for docs, leg in result.legs.items()
    }
    assert broken(told(judge_prefill, replace(result, legs=legs))) == [
        ("ttft >= the server's own prompt time", "clock-disagreement")
    ]
    legs = {docs: [replace(answer(4000.0), timings=slow)] for docs in result.legs}
    verdicts = told(judge_prefill, replace(result, legs=legs))
    assert "ttft >= the server's own prompt time" not in [v.relation for v in verdicts if v.cause]


def test_a_replayed_answer_is_no_dead_cache() -> None:
    """A cache of responses repeats the counts of the first answer, and no time passes."""
    cold = replace(answer(900.0), timings={"prompt_n": 1300, "cache_n": 0, "prompt_ms": 880.0})
    replayed = replace(cold, pieces=(Piece(2.0, "Hi"),))
    assert cache_miss(cold, replayed).code == "clock-disagreement"
    assert cache_miss(cold, cold).code == "cache-never-hits"
    # a clock that is always wrong says nothing of the second answer
    fast = replace(replayed, timings={**cold.timings, "prompt_ms": 2640.0})
    wrong = replace(cold, timings={**cold.timings, "prompt_ms": 2640.0})
    assert cache_miss(wrong, fast).code == "cache-never-hits"


def test_the_parting_of_two_prompts_is_shown() -> None:
    assert (
        parting("v=1;the same", "v=2;the same")
        == "character 3 ('v=1;the same' against 'v=2;the same')"
    )


def test_sentence() -> None:
    good = SentenceResult(Sentence(10.0, 20.0, 30.0, "A.", "A. B."), answer())
    assert outcomes(judge_sentence(good)) == {"holds"}
    burst = replace(good, timeline=answer(ttft=3000.0, gap=0.05, generated=2900.0))
    assert broken(judge_sentence(burst)) == [("ttft <= first sentence <= total", "burst")]
    late = replace(good, sentence=replace(good.sentence, first_sentence_ms=31.0))
    assert broken(judge_sentence(late)) == [("ttft <= first sentence <= total", "order")]
    other = replace(good, sentence=replace(good.sentence, first_sentence="B."))
    assert broken(judge_sentence(other))[0][1] == "not-a-prefix"


CASE = CancelCase(
    name="close-at",
    phase="generation",
    stop="stopped",
    proof="log",
    seen_busy=None,
    max_tokens=256,
    received_tokens=18,
    closed_at_ms=500.0,
    idle_after_ms=40.0,
    resolution_ms=5.0,
    waited_ms=40.0,
    tokens_after_close=2,
    prompt_processed=None,
    prompt_tokens=None,
    log_line="cancel task, id_task = 4",
    log_span=None,
    shown_busy=True,
    tokens_before_close=18,
)
CANCEL = CancelResult(
    Cancel(256, 18, 500.0, 40.0), (CASE,), "/slots", None, "the log", CASE.log_line, None
)
BUSY = replace(CANCEL.cancel, slot_idle_after_ms=None)
NEVER_IDLE = replace(CASE, idle_after_ms=None, log_line=None, stop="unknown", waited_ms=30000.0)
RAN_ON = replace(CASE, log_line=None, stop="ran on", waited_ms=11400.0, idle_after_ms=11400.0)
IDLE = "the close stops the server: the slot goes idle"
IN_PREFILL = replace(
    CASE,
    name="prefill",
    phase="prefill",
    received_tokens=0,
    prompt_processed=513,
    prompt_tokens=4100,
)
RAN_THROUGH = replace(IN_PREFILL, stop="ran on", prompt_processed=4100, idle_after_ms=17000.0)


def test_cancel() -> None:
    assert outcomes(told(judge_cancel, CANCEL)) == {"holds"}
    both = told(judge_cancel, replace(CANCEL, cases=(CASE, IN_PREFILL)))
    assert outcomes(both) == {"holds"}
    assert "513 of 4,100 tokens processed" in " ".join(verdict.numbers for verdict in both)
    too_fast = replace(CANCEL, cases=(CASE, replace(RAN_THROUGH, stop="unknown")))
    assert "a close in prefill stops it" not in [v.relation for v in told(judge_cancel, too_fast)]


def test_the_log_of_a_server_that_worked_on_is_no_wrong_log() -> None:
    log = "the log has the task's cancel line"
    ignored = replace(CANCEL, cancel=BUSY, cases=(replace(RAN_ON, proof="slots"),), log_line=None)
    assert broken(told(judge_cancel, ignored)) == [
        (IDLE, "cancel-ignored"),
        (log, "cancel-ignored"),
    ]
    # by its time alone it may have waited for the requests of others
    by_time = replace(ignored, cases=(replace(RAN_ON, proof="time"),))
    assert broken(told(judge_cancel, by_time))[-1] == (log, "cancel-not-logged")
    # closed before its first piece; a later close was
    later = (replace(NEVER_IDLE, phase="prefill", idle_after_ms=40.0), *ignored.cases)
    assert broken(told(judge_cancel, replace(ignored, cases=later)))[-1] == (
        log,
        "cancel-ignored",
    )


def test_a_log_that_tells_of_no_request_proves_nothing() -> None:
    log = "the log has the task's cancel line"
    talks = replace(CANCEL, cases=(replace(CASE, log_line=None, log_talks=True),), log_line=None)
    silent = replace(CANCEL, cases=(replace(CASE, log_line=None),), log_line=None)
    found = [v for r in (talks, silent) for v in told(judge_cancel, r) if v.relation == log]
    assert [v.outcome for v in found] == ["broken", "inconclusive"]


def test_a_server_that_was_not_watched_was_not_seen_to_work_on() -> None:
    """One answer right after the close, and then none."""
    unwatched = replace(NEVER_IDLE, waited_ms=3.0)
    result = replace(CANCEL, cancel=BUSY, cases=(unwatched,), log_source=None)
    assert broken(told(judge_cancel, result)) == [(IDLE, "unanswered")]
    watched = told(
        judge_cancel, replace(result, cases=(replace(unwatched, waited_ms=3e4, stop="ran on"),))
    )
    assert next(v.cause.sentence for v in watched if v.cause).startswith("the slot was still busy")
    # a further close that was not seen idle, after one that stopped it
    extra = replace(RAN_ON, proof="slots", idle_after_ms=None)
    beside = replace(CANCEL, cases=(CASE, extra))
    assert broken(told(judge_cancel, beside)) == [(IDLE, "cancel-unproven")]
    # what was never idle after the first is at work after the next
    first = replace(NEVER_IDLE, phase="prefill")
    both = replace(CANCEL, cancel=BUSY, cases=(first, replace(RAN_ON, proof="slots", others=True)))
    assert (IDLE, "cancel-ignored") in broken(told(judge_cancel, both))


def test_the_requests_of_others_after_a_close() -> None:
    for case in (
        replace(RAN_ON, proof="slots"),
        replace(CASE, idle_after_ms=None, waited_ms=30000.0),
        replace(CASE, tokens_after_close=1857),
    ):
        cancel = replace(CANCEL.cancel, slot_idle_after_ms=case.idle_after_ms)
        alone = replace(CANCEL, cancel=cancel, cases=(case,))
        assert outcomes(told(judge_cancel, alone)) == {"holds", "broken"}
        beside = replace(alone, cases=(replace(case, others=True),))
        assert outcomes(told(judge_cancel, beside)) == {"holds", "inconclusive"}
        assert broken(told(judge_cancel, beside)) == [(IDLE, "others-use-the-server")]
    by_slots = replace(CANCEL, cases=(replace(CASE, proof="slots", others=True),))
    assert broken(told(judge_cancel, by_slots)) == [(IDLE, "others-use-the-server")]
    prefill = replace(CANCEL, cases=(CASE, replace(RAN_THROUGH, others=True)))
    assert "a close in prefill stops it" not in [v.relation for v in told(judge_cancel, prefill)]


@pytest.mark.parametrize(
    ("result", "relation", "code"),
    [
        (replace(CANCEL, cancel=replace(CANCEL.cancel, received_tokens=256)),
         "received < max_tokens", "answer-ended"),
        (replace(CANCEL, cases=(replace(CASE, phase="ended"),)),
         IDLE, "answer-ended"),
        (replace(CANCEL, cancel=BUSY, cases=(NEVER_IDLE,), log_source=None), IDLE, "cancel-ignored"),
        (replace(CANCEL, cancel=BUSY, cases=(replace(CASE, idle_after_ms=None, waited_ms=3e4),)),
         IDLE, "cancel-logged-but-running"),
        (replace(CANCEL, cases=(RAN_ON,), log_source=None), IDLE, "cancel-ignored"),
        (replace(CANCEL, cases=(CASE, replace(RAN_ON, name="first-piece-1"))), IDLE, "cancel-ignored"),
        (replace(CANCEL, cases=(replace(CASE, stop="unknown"),), log_source=None), IDLE, "cancel-unproven"),
        (replace(CANCEL, cases=(CASE, replace(CASE, name="first-piece-1", seen_busy=False))), IDLE, "slots-blind"),
        (replace(CANCEL, cases=(replace(CASE, tokens_after_close=80),)), IDLE, "cancel-late"),
        # nearly all of it was reasoning, of which no piece was received: 26 tokens were left
        (replace(CANCEL, cases=(replace(CASE, tokens_after_close=25, received_tokens=0, tokens_before_close=230),)), IDLE, "cancel-late"),
        (replace(CANCEL, cases=(CASE, RAN_THROUGH)), "a close in prefill stops it", "cancel-late-in-prefill"),
        (replace(CANCEL, log_line=None), "the log has the task's cancel line", "cancel-not-logged"),
        (replace(CANCEL, next_error="stalled"), "the next request is answered", "next-request-suffers"),
        (replace(CANCEL, unwatched="HTTP 501"), IDLE, "no-slots"),
    ],
)  # fmt: skip
def test_cancel_breaks(result: CancelResult, relation: str, code: str) -> None:
    assert {found for _, found in broken(told(judge_cancel, result))} == {code}
    assert (relation, code) in broken(told(judge_cancel, result))


LATE = replace(CASE, proof="time", log_line=None, late=True, idle_after_ms=6000.0)


@pytest.mark.parametrize(
    ("cases", "found"),
    [
        # every close in generation was followed late by the server's own beat, whatever else says
        ((LATE, replace(LATE, name="first-piece-1")), "broken: cancel-late"),
        ((replace(LATE, log_line="cancel task, id_task = 4", proof="log"), replace(LATE, name="first-piece-1")), "broken: cancel-late"),
        ((replace(LATE, proof="slots", stop="stopped"), replace(LATE, name="first-piece-1")), "broken: cancel-late"),
        # one of two, or the only one: a busy machine, perhaps
        ((replace(CASE, proof="time", log_line=None), replace(LATE, name="first-piece-1")), "inconclusive: cancel-unproven"),
        ((LATE,), "inconclusive: cancel-unproven"),
        # what shows that the server is idle never showed anything else
        ((replace(CASE, shown_busy=False, proof="time", log_line=None),), "inconclusive: slots-blind"),
        ((replace(CASE, phase="ended", shown_busy=False), replace(CASE, name="first-piece-1", shown_busy=False)), "inconclusive: answer-ended"),
    ],
)  # fmt: skip
def test_all_witnesses_together(cases: tuple[CancelCase, ...], found: str) -> None:
    result = replace(CANCEL, cases=cases, log_line=CANCEL.log_line)
    rows = {row.relation: row for row in judge_cancel(result)}
    row = rows[IDLE]
    assert f"{row.outcome}: {row.cause and row.cause.code}" == found


def test_of_two_closes_in_prefill_the_one_whose_prompt_is_counted_tells() -> None:
    uncounted = replace(RAN_THROUGH, name="close-at", prompt_tokens=None, stop="unknown")
    result = replace(CANCEL, cases=(uncounted, replace(CASE, name="first-piece-1"), RAN_THROUGH))
    rows = {row.relation: row for row in judge_cancel(result)}
    assert rows["a close in prefill stops it"].outcome == "broken"


def test_who_is_to_blame_where_the_server_behind_has_no_log() -> None:
    ran_on = replace(RAN_ON, proof="slots", log_talks=True)
    through = judge_cancel(replace(CANCEL, cases=(ran_on,), log_line=None))
    behind = judge_cancel(replace(CANCEL, log_source=None, log_line=None))
    told = told_apart(through, behind)
    assert {one.relation for one in told if one.outcome == "broken"} == {
        IDLE,
        "the log has the task's cancel line",
    }
    assert all(
        "what stands between is to blame" in one.cause.sentence
        for one in told
        if one.outcome == "broken" and one.cause
    )


CANCEL_ROWS = {
    "received < max_tokens", IDLE, "a close in prefill stops it",
    "the log has the task's cancel line", "the next request is answered",
}  # fmt: skip


def test_no_relation_of_a_close_disappears() -> None:
    results = [
        CANCEL, replace(CANCEL, cases=(replace(CASE, phase="ended"),)), replace(CANCEL, log_source=None),
        replace(CANCEL, unwatched="HTTP 501"), replace(CANCEL, cases=(CASE, RAN_THROUGH)),
        replace(CANCEL, cases=(CASE, IN_PREFILL)), replace(CANCEL, cancel=BUSY, cases=(NEVER_IDLE,)),
        replace(CANCEL, cases=(CASE, replace(IN_PREFILL, stop="unknown"))),
    ]  # fmt: skip
    for result in results:
        rows = judge_cancel(result)
        assert {row.relation for row in rows} == CANCEL_ROWS
        assert len(rows) == len(CANCEL_ROWS)
        assert all(row.cause is not None for row in rows if row.outcome != "holds")


def test_no_relation_of_prefill_and_cache_disappears() -> None:
    growing = prefill_result((60, 200.0), (500, 900.0), (1300, 4000.0))
    warm = replace(
        growing,
        legs={
            docs: [replace(leg[0], timings={**leg[0].timings, "prompt_n": 1, "cache_n": 1300})]
            for docs, leg in growing.legs.items()
        },
    )
    uncounted = prefill_result((None, 57.0), (None, 75.0), (None, 120.0))
    names = [[row.relation for row in judge_prefill(one)] for one in (growing, warm, uncounted)]
    assert names[0] == names[1] == names[2]
    assert len(names[0]) == 3


def test_a_close_that_seems_ignored_by_its_time_alone() -> None:
    """Where another close stopped the server, others may have kept it busy."""
    late = replace(CASE, stop="ran on", proof="time", log_line=None, idle_after_ms=9000.0)
    by_time = replace(CASE, proof="time", log_line=None)
    alone = replace(CANCEL, cases=(late,), log_source=None, log_line=None)
    assert outcome_codes(told(judge_cancel, alone)) == ["broken: cancel-ignored"]
    both = replace(alone, cases=(by_time, late))
    assert outcome_codes(told(judge_cancel, both)) == ["inconclusive: cancel-unproven"]
    surely = replace(alone, cases=(by_time, replace(late, proof="slots")))
    assert outcome_codes(told(judge_cancel, surely)) == ["broken: cancel-ignored"]


def outcome_codes(verdicts: list[Verdict]) -> list[str]:
    """ "outcome: code" of what does not hold."""
    return [f"{v.outcome}: {v.cause.code}" for v in verdicts if v.cause is not None]


def test_a_missing_log_leaves_the_slot_as_proof() -> None:
    result = replace(CANCEL, log_source=None, log_line=None)
    assert outcomes(told(judge_cancel, result)) == {"holds"}


def test_report() -> None:
    values = Report(1.0, 2.0, 3.0, 4, 5.0, 6.0, None)
    assert outcomes(judge_report(ReportResult(values, values))) == {"holds"}
    rounded = replace(values, total_p50_ms=2.1)
    verdicts = judge_report(ReportResult(rounded, values))
    assert verdicts[0].cause is not None
    assert verdicts[0].cause.sentence.startswith("total_p50_ms differ")


def test_a_verdict_says_numbers_relation_and_cause_in_three_lines() -> None:
    lines = ttft_below_total(replace(answer(), error="T")).lines()
    assert lines == ["own: broken: ttft < total", "  no whole answer", "  cause stream-error: T"]


def test_counts_decide_where_a_pair_of_times_is_noise() -> None:
    cold, late = answer(15.0, prompt_n=763), answer(17.9, prompt_n=1, cache_n=762)
    assert cached_below_uncached(cold, late).outcome == "holds"
    uncounted = [replace(timeline, timings={}) for timeline in (cold, late)]
    assert cached_below_uncached(*uncounted).outcome == "inconclusive"
    failed = replace(late, error="T")
    assert cached_below_uncached(cold, failed).outcome == "broken"


def test_relations_for_a_user_s_own_timelines() -> None:
    short, long = answer(10.0, prompt_n=50), answer(90.0, prompt_n=500)
    cached = answer(9.0, prompt_n=1, cache_n=499)
    assert long_above_short(short, long).outcome == "holds"
    assert long_above_short(long, short).outcome == "broken"
    assert cached_below_uncached(long, cached).outcome == "holds"
    assert cached_below_uncached(long, long).outcome == "broken"
    assert cached_below_uncached(cached, cached).outcome == "inconclusive"


def timed_cache(*seconds: tuple[float, float, float], hi_ms: float = 100.0) -> CacheResult:
    """Rounds of (first, second, changed_prefix) of a server that counts nothing, each after a
    short request of `hi_ms`."""
    names = ("first", "second", "changed_prefix")
    legs = {
        name: [replace(answer(ttft=1000 * row[i]), timings={}) for row in seconds]
        for i, name in enumerate(names)
    }
    cache = Cache(**{name: CacheLeg(None, legs[name][0].ttft_ms or 0) for name in names})
    clearing = [replace(answer(ttft=hi_ms), timings={}) for _ in seconds]
    return CacheResult(cache, legs, clearing)


def test_without_counts_times_decide_only_what_they_show() -> None:
    clear = timed_cache((4.0, 0.1, 4.1), (3.9, 0.11, 4.0), (4.2, 0.1, 3.9))
    assert outcomes(told(judge_cache, clear)) == {"holds"}
    dead = timed_cache(*[(4.0 + n / 100, 3.99, 4.0) for n in range(6)])
    assert outcomes(told(judge_cache, dead)) == {"broken"}
    assert codes(dead) == {"no-difference-in-time"}
    # where a long prompt takes no longer than a short one, a cache cannot be seen
    remote = timed_cache(*[(0.225, 0.21, 0.225)] * 6, hi_ms=200.0)
    assert outcomes(told(judge_cache, remote)) == {"inconclusive"}
    assert codes(remote) == {"effect-invisible"}
    once = timed_cache((0.0501, 0.0499, 0.05))
    assert outcomes(told(judge_cache, once)) == {"inconclusive"}


def test_a_hand_made_cache_of_headers_is_none() -> None:
    legs = {"first": (1234, 900.0), "second": (1200, 899.0), "changed_prefix": (1240, 905.0)}
    cache = Cache(**{name: CacheLeg(*leg) for name, leg in legs.items()})
    by_hand = replace(cache_result((1234, 0), (1, 1233), (1240, 0)), cache=cache, legs={})
    assert "broken" in outcomes(told(judge_cache, by_hand))
    cached = replace(cache, second=CacheLeg(1, 60.0))
    assert outcomes(told(judge_cache, replace(by_hand, cache=cached))) == {"holds"}


def test_rounded_runs_may_agree_by_chance() -> None:
    runs = [(12.3, 310.4), (12.3, 310.4), (12.4, 310.2), (12.2, 310.9), (12.5, 311.0)]
    rounded = Ttft(tuple(TtftRun(*run, 64) for run in runs), 12.3, 310.4)
    assert runs_differ(rounded).outcome == "holds"
    fine = Ttft(tuple(TtftRun(a + 0.0123, b, 64) for a, b in runs), 12.3123, 310.4)
    assert runs_differ(fine).outcome == "broken"


def test_one_answer_of_the_cache_step_by_times() -> None:
    """The second leg took as long as the first; whether as long as the changed prefix, the noise
    hides: it was not cached. A leg that seems slower by far is another matter."""
    wild = (1.4, 0.7, 1.3, 0.75, 1.45, 0.7, 1.35, 0.8)
    noisy = timed_cache(*[(1.0, 1.0, other) for other in wild])
    alone = replace(noisy, legs={**noisy.legs, "first": noisy.legs["changed_prefix"]})
    assert set(alone.decided().values()) == {None}
    assert noisy.decided() == {"first": "broken", "changed_prefix": "broken"}
    apart = timed_cache(*[(1.0, 1.0, 1.6 * other) for other in wild])
    assert apart.decided() == {"first": "broken", "changed_prefix": None}


def test_a_short_rest_blames_nobody() -> None:
    """By its time alone it seems ignored, and a healthy server may take as long to notice."""
    short = replace(RAN_ON, proof="time", idle_after_ms=800.0)
    result = replace(
        CANCEL,
        log_source=None,
        log_line=None,
        cancel=replace(CANCEL.cancel, slot_idle_after_ms=800.0),
    )
    outcome = {
        idle_ms: next(
            v.outcome
            for v in told(
                judge_cancel, replace(result, cases=(replace(short, idle_after_ms=idle_ms),))
            )
            if v.relation == IDLE
        )
        for idle_ms in (800.0, 5000.0)
    }
    assert outcome == {800.0: "inconclusive", 5000.0: "broken"}
