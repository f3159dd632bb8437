"""What people report about streaming servers and their clients, each with its right verdict.

The number is the row's; the source is the public report that it restates.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3.util.connection
from engines import Engine, vllm
from scripted import Connection, Request, end_events, event, relay, role_event, serving, text_event

from pytest_llm_latency.errors import StreamError
from pytest_llm_latency.evidence.activity import Poll, answer_of
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import End, Recording
from pytest_llm_latency.evidence.recording import Request as Asked
from pytest_llm_latency.evidence.timeline import Timeline
from pytest_llm_latency.servers.choice import wait_for_url
from pytest_llm_latency.sse import MESSAGES, Read
from pytest_llm_latency.steps.answers import usable
from pytest_llm_latency.steps.cancel.asks import CONTROL_TOKENS
from pytest_llm_latency.steps.cancel.case import cancel_case
from pytest_llm_latency.steps.cancel.causes import cancel_ignored, prefill_late
from pytest_llm_latency.verdicts.causes import hold, unusable, why_not_as_made
from pytest_llm_latency.verdicts.pairs import cached_below_uncached
from pytest_llm_latency.verdicts.stream import ttft_below_total
from pytest_llm_latency.verdicts.verdict import Verdict
from pytest_llm_latency.wire.channel import Deadlines
from pytest_llm_latency.wire.client import Client

from .conftest import Run, summary

Script = Callable[[Connection, Request], None]
PROMPT = [{"role": "user", "content": "List our opening hours. " * 20}]


def asked(script: Script, **deadlines: float) -> Recording:
    """One answer of a server that does this."""
    with serving(script) as server:
        client = Client(server.base_url, deadlines=Deadlines(**deadlines), jitter_ms=0.2)
        return client.record(MESSAGES, label="own/1")


def sending(*parts: str | bytes | float) -> Script:
    """A close-delimited answer of these writes; a number is a pause in seconds."""

    def script(connection: Connection, _: Request) -> None:
        connection.head()
        for part in parts:
            if isinstance(part, float):
                time.sleep(part)
            else:
                connection.send(part)

    return script


def code(verdict: Verdict) -> str:
    return f"{verdict.outcome}: {verdict.cause.code}" if verdict.cause else verdict.outcome


def sentence_of(verdict: Verdict) -> str:
    assert verdict.cause is not None
    return verdict.cause.sentence


# --- streams ---


def test_1_mostlygeek_llama_swap_236_a_proxy_buffers() -> None:
    burst = "".join(text_event("w ") for _ in range(30)) + end_events().replace(
        '"predicted_ms": 1.0', '"predicted_ms": 580.0'
    )
    verdict = ttft_below_total(derive(asked(sending(0.6, burst))))
    assert "30 pieces came in 1 read" in sentence_of(verdict)
    if code(verdict) == "inconclusive: reader-behind":
        return  # no core was free
    assert code(verdict) == "broken: burst"
    for words in ("in 0.6 s", "proxy_buffering off", "X-Accel-Buffering: no"):
        assert words in sentence_of(verdict)


def test_2_koboldcpp_1411_the_client_s_own_buffer_is_no_fault_of_the_server() -> None:
    piece = text_event("w ").replace('"index": 0', '"index": 0, "pad": "0123456789"')
    assert 90 <= len(piece) < 130
    parts = [part for _ in range(10) for part in (0.03, piece)]
    timeline = derive(
        asked(
            sending(
                *parts,
                end_events(tokens=10).replace('"predicted_ms": 1.0', '"predicted_ms": 300.0'),
            )
        )
    )
    assert len(timeline.arrivals) >= 8  # read by read, however late some of them came
    assert ttft_below_total(timeline).outcome == "holds"
    assert why_not_as_made(timeline) is None


def test_3_vllm_3768_headers_role_and_first_text_are_three_moments() -> None:
    recording = asked(
        sending(0.01, role_event(), 0.4, text_event("Hi. "), 0.05, text_event("Bye."), end_events())
    )
    timeline = derive(recording)
    assert recording.headers_ms is not None
    assert timeline.ttft_ms is not None
    role_ms = recording.reads[0].t_ms
    assert recording.headers_ms < role_ms < timeline.ttft_ms / 2
    assert timeline.first_token_ms == timeline.ttft_ms


def test_4_inference_perf_559_only_reasoning() -> None:
    reasoning = event({"choices": [{"delta": {"reasoning_content": "hm "}}]})
    timeline = derive(asked(sending(0.05, reasoning, 0.05, reasoning, end_events(reason="length"))))
    assert timeline.ttft_ms is None
    assert timeline.first_token_ms is not None
    verdict = ttft_below_total(timeline)
    assert code(verdict) == "inconclusive: only-reasoning"
    assert "enable_thinking" in sentence_of(verdict)


def test_5_localharness_142_reasoning_beside_an_empty_text() -> None:
    reasoning = event({"choices": [{"delta": {"content": "", "reasoning": "hm"}}]})
    timeline = derive(asked(sending(reasoning, 0.05, text_event("yes"), 0.02, end_events())))
    assert timeline.text == "yes"
    assert timeline.reasoning_field == "reasoning"
    assert timeline.first_token_ms is not None
    assert timeline.ttft_ms is not None
    assert timeline.ttft_ms > timeline.first_token_ms + 20


def test_6_llama_benchy_11_pieces_are_no_tokens() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 12}})
    finish = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    timeline = derive(asked(sending(*[text_event("abcd")] * 3, finish, usage, "data: [DONE]\n\n")))
    assert (len(timeline.pieces), timeline.tokens) == (3, 12)


def test_15_openai_python_498_no_space_after_the_colon() -> None:
    timeline = derive(asked(sending(text_event("a").replace("data: ", "data:"), "data:[DONE]\n\n")))
    assert (timeline.text, timeline.done) == ("a", True)


def test_16_hey_api_3054_crlf_also_split_over_two_reads() -> None:
    crlf = text_event("a").replace("\n", "\r\n")
    parts: list[str | float] = []
    for cut in (len(crlf) - 3, len(crlf) - 1):
        parts += [crlf[:cut], 0.02, crlf[cut:]]
    timeline = derive(asked(sending(*parts, end_events())))
    assert (timeline.text, timeline.error) == ("aa", None)


def test_17_mistral_vibe_774_comments_are_neither_pieces_nor_ends() -> None:
    timeline = derive(
        asked(
            sending(
                ":\n\n",
                text_event("a"),
                ": ping - 2026\r\n\r\n",
                text_event("b"),
                ":\n\n",
                end_events(),
            )
        )
    )
    assert [piece.text for piece in timeline.pieces] == ["a", "b"]
    assert timeline.done


def test_18_aisix_111_a_character_split_over_two_reads() -> None:
    data = event({"choices": [{"delta": {"content": "@"}}]}).encode().replace(b"@", b"\xe5\xa5\xbd")
    cut = data.index(b"\xbd")
    timeline = derive(asked(sending(data[:cut], 0.02, data[cut:], end_events())))
    assert timeline.text == "\u597d"


def test_19_ik_llama_467_no_done() -> None:
    finish = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    whole = derive(asked(sending(text_event("a"), 0.02, finish)))
    assert unusable(whole) is None
    cut = unusable(derive(asked(sending(text_event("a")))))
    assert cut is not None
    assert cut.code == "cut-short"


def test_20_guidellm_743_an_error_inside_the_stream_is_no_success() -> None:
    failed = asked(sending(text_event("a"), event({"error": {"message": "T"}}), "data: [DONE]\n\n"))
    verdict = ttft_below_total(derive(failed))
    assert code(verdict) == "broken: stream-error"
    assert sentence_of(verdict).endswith(": T")
    with pytest.raises(StreamError, match="inside the stream: T"):
        usable(failed)  # no timing of it is used


def test_23_openhanako_2517_silence_has_a_name_and_is_asked_once() -> None:
    requests: list[str] = []

    def silent(connection: Connection, request: Request) -> None:
        requests.append(request.target)
        connection.wait_for_close()

    recording = asked(silent, first_byte=0.3)
    assert (recording.end.kind, recording.end.detail) == (
        "deadline",
        "first byte deadline: no answer in 0.3 s",
    )
    assert len(requests) == 1


def test_24_llama_cpp_22799_the_time_to_connect_is_a_number_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = urllib3.util.connection.create_connection

    def slow_connect(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.4)  # as where IPv6 is tried in vain
        return connect(*args, **kwargs)

    monkeypatch.setattr(urllib3.util.connection, "create_connection", slow_connect)
    recording = asked(sending(text_event("a"), 0.02, end_events()))
    ttft_ms = derive(recording).ttft_ms
    assert recording.connect_ms is not None
    assert ttft_ms is not None
    assert recording.connect_ms >= 400 > ttft_ms


def test_26_imp_754_a_finished_answer_cut_up_at_its_end() -> None:
    pieces = [text_event("w ")] * 30
    ended = "data: [DONE]\n\n"
    told = event(
        {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "timings": {"predicted_ms": 500.0, "predicted_n": 30},
        }
    )
    for last in (told, ""):
        timeline = derive(asked(sending(0.6, *pieces, last, ended)))
        cause = hold(timeline)
        assert cause is not None
        assert cause.code in ("burst", "reader-behind")  # the latter on a machine with no core free
        assert "30 pieces came" in cause.sentence


# --- caches ---


def counted(
    processed: int, reused: int, ttft_ms: float = 100.0, prompt: str = "the same"
) -> Timeline:
    piece = Read(ttft_ms, text_event("a").encode())
    last = Read(ttft_ms + 50, end_events(processed, reused).encode())
    request = Asked("POST", "", {}, {"messages": [{"role": "user", "content": prompt}]})
    return derive(
        Recording("own/1", request, 200, (), 0.1, 1.0, (piece, last), End("eof", last.t_ms))
    )


def test_7_llama_cpp_14157_the_same_prompt_is_processed_again() -> None:
    verdict = cached_below_uncached(counted(1350, 0), counted(1350, 0))
    assert code(verdict) == "broken: cache-never-hits"
    assert "--swa-full" in sentence_of(verdict)


@pytest.mark.zoo
def test_8_ollama_18264_the_cold_leg_was_warm(lab: Run, serve: Callable[..., str]) -> None:
    verdict = cached_below_uncached(counted(1, 1349), counted(1, 1349))
    assert code(verdict) == "inconclusive: cold-leg-was-warm"
    # The lab makes it cold: twice on a server that keeps prompts in RAM.
    url = serve("--cache-ram", "512")
    for _ in range(2):
        result = lab(f"--llm-url={url}", "-k", "cache", own_server=False)
        result.assert_outcomes(passed=1, deselected=7)
    assert "measured with a salt: " in summary(result)


def test_9_vllm_47430_a_prefix_shorter_than_the_cache_block(
    lab: Run, serve: Callable[..., str], tmp_path: Path
) -> None:
    def large_blocks(request: Request) -> None:
        messages = (request.body or {}).get("messages") or [{"content": ""}]
        if "cache_prompt" in (request.body or {}) and len(messages[0]["content"]) < 1_500:
            request.body["cache_prompt"] = False

    for number in range(12):
        (tmp_path / f"{number}.md").write_text(f"Room {number} opens at {number}.")
    with serving(relay(serve(), large_blocks)) as proxy:
        args = (f"--llm-url={proxy.base_url}", "-k", "cache", f"--llm-kb={tmp_path}")
        result = lab(*args, own_server=False)
    result.assert_outcomes(passed=1, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "note: cache: the prompt of about * tokens never hit; measured again with its documents * times*"
        ]
    )


def test_10_claude_code_router_1217_a_changing_line_at_the_front() -> None:
    verdict = cached_below_uncached(
        counted(500, 0, prompt="v=1; P"), counted(500, 0, prompt="v=2; P")
    )
    assert code(verdict) == "broken: prompts-differ"
    assert "character 3 ('v=1; P' against 'v=2; P')" in sentence_of(verdict)
    assert "belongs at the end" in sentence_of(verdict)


@pytest.mark.zoo
def test_25_lmstudio_2419_no_counts_anywhere(lab: Run, serve: Callable[..., str]) -> None:
    upstream = serve()

    def script(connection: Connection, request: Request) -> None:
        send = connection.send
        connection.send = lambda data: send(  # type: ignore[method-assign]
            data.replace(b'"timings"', b'"_imings"').replace(b'"usage"', b'"_sage"')
            if isinstance(data, bytes)
            else data
        )
        relay(upstream)(connection, request)

    with serving(script) as proxy:
        result = lab(f"--llm-url={proxy.base_url}", "-k", "cache", own_server=False)
    result.assert_outcomes(passed=1, deselected=7)
    result.stdout.fnmatch_lines(
        ["cache *second < first in ttft *holds *rounds; count not reported"]
    )


@pytest.mark.zoo
def test_27_vllm_54227_two_runs_do_not_measure_the_prefix_cache(lab: Run) -> None:
    engine = Engine(usage=False)
    prompts: list[set[str]] = []
    for _ in range(2):
        del engine.bodies[:]
        with serving(engine.script) as server:
            result = lab(f"--llm-url={server.base_url}", "-k", "ttft", own_server=False)
        result.assert_outcomes(passed=1, deselected=7)
        salted = [body for body in engine.bodies if "Call " in body["messages"][0]["content"]]
        assert len(salted) >= 5
        prompts.append({body["messages"][0]["content"] for body in salted})
    assert not prompts[0] & prompts[1]


# --- cancelling ---


def poll(asked_ms: float, busy: bool, tokens: int) -> Poll:
    slot = {
        "id": 0,
        "id_task": 7,
        "is_processing": busy,
        "n_prompt_tokens": tokens,
        "next_token": [{"has_next_token": True}],
    }
    return Poll(asked_ms, asked_ms + 2.0, 200, json.dumps([slot]))


def closed(reads: int) -> Recording:
    pieces = tuple(Read(10.0 * n, text_event("a").encode()) for n in range(1, reads + 1))
    return Recording(
        "cancel/prefill",
        Asked("POST", "", {}, {"max_tokens": 256}),
        200,
        (),
        0.1,
        1.0,
        pieces,
        End("closed", 500.0),
    )


def test_11_llama_cpp_15232_a_close_in_prefill_fails_only_past_a_batch() -> None:
    stopped = cancel_case(
        "prefill", closed(0), [poll(1300, True, 512), poll(2600, False, 1024)], None, None, 4000
    )
    assert stopped.stop == "stopped"
    one_batch = cancel_case(
        "prefill", closed(0), [poll(1300, True, 2048), poll(2600, False, 4000)], None, None, 4000
    )
    assert one_batch.stop == "unknown"
    ran = [
        poll(1300, True, 512),
        poll(2600, True, 1536),
        poll(3900, True, 2560),
        poll(5200, False, 4000),
    ]
    through = cancel_case("prefill", closed(0), ran, None, None, 4000)
    assert through.stop == "ran on"
    assert prefill_late(through).code == "cancel-late-in-prefill"


def test_12_llama_cpp_24496_the_slot_works_on() -> None:
    polls = [poll(5.0 * n, True, 100 + n) for n in range(1, 6001, 500)]
    case = cancel_case("close-at", closed(20), polls, None, None)
    words = cancel_ignored(case).sentence
    assert "was still busy (5500 more tokens), 27.5 s after the close" in words


def test_13_litellm_31499_a_proxy_forwards_no_disconnect() -> None:
    case = cancel_case("close-at", closed(20), [poll(5.0, True, 100)], None, None)
    assert "--llm-upstream-url" in cancel_ignored(case).sentence


@pytest.mark.zoo
def test_14_ollama_11889_noticed_only_at_the_next_send(lab: Run) -> None:
    """Holds in generation; in prefill a note."""
    engine = vllm()
    engine.characters_a_second = 10_000.0
    with serving(engine.script) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "cancel", own_server=False)
    result.assert_outcomes(passed=1, deselected=7)
    result.stdout.fnmatch_lines(["note: cancel: closed in prefill * cannot be told here"])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (501, "This server does not support slots endpoint."),
        (404, ""),
        (400, "model name is missing"),
    ],
)
def test_21_llama_cpp_22373_no_slots_says_why(status: int, body: str) -> None:
    answer = answer_of(status, json.dumps({"error": {"message": body}}) if body else "")
    assert answer.busy is None
    assert answer.missing == f"the server offers no /slots: HTTP {status} {body}".rstrip()


def test_22_llama_swap_146_loading_is_waited_for_with_progress() -> None:
    states: Iterator[int] = iter([503, 503, 503])
    shown: list[str] = []

    def script(connection: Connection, request: Request) -> None:
        if request.target == "/health" and next(states, None):
            connection.reply({"error": {"message": "Loading model"}}, "503 Service Unavailable")
        else:
            connection.reply({"status": "ok", "data": []})

    with serving(script) as server:
        wait_for_url(Client(server.base_url), 30.0, shown.append)
    assert len(shown) == 3
    assert "server loading" in shown[0]


def test_28_ik_llama_1929_the_next_request_suffers(lab: Run) -> None:
    engine = vllm()

    def script(connection: Connection, request: Request) -> None:
        body = request.body or {}
        is_next = body.get("max_tokens") == CONTROL_TOKENS and len(body["messages"]) == 2
        if is_next:
            connection.head()
            connection.send(event({"error": {"message": "slot unavailable"}}))
        else:
            engine.script(connection, request)

    with serving(script) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "cancel", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    assert "cause next-request-suffers: after the cancel: " in summary(result)
