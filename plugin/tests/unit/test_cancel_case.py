"""What a close and the answers of /slots after it say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_llm_latency.errors import ArtifactError
from pytest_llm_latency.evidence.activity import ONE_TOKEN, Poll, load_polls
from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.evidence.recording import End, Recording, Request
from pytest_llm_latency.sse import Read
from pytest_llm_latency.steps.cancel.beat import beat_of
from pytest_llm_latency.steps.cancel.case import CancelCase, cancel_case, is_soon_by_time
from pytest_llm_latency.steps.cancel.result import cancel_result
from pytest_llm_latency.steps.legs import Recordings


def poll(asked_ms: float, busy: bool, tokens: int, *, finished: bool = False) -> Poll:
    """An answer of /slots as llama-server gives it."""
    slot = {
        "id": 0,
        "id_task": 7,
        "is_processing": busy,
        "n_prompt_tokens": tokens,
        "next_token": [{"has_next_token": not finished}],
    }
    return Poll(asked_ms, asked_ms + 2.0, 200, json.dumps([slot]))


def close(
    polls: list[Poll],
    pieces: int = 0,
    prompt_tokens: int | None = None,
    log: bytes | None = None,
    event: bytes = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    beside: Recordings | None = None,
) -> CancelCase:
    """A stream that was closed after so many pieces."""
    reads = tuple(Read(10.0 * number, event) for number in range(1, pieces + 1))
    request = Request("POST", "", {}, {"max_tokens": 256})
    recording = Recording("cancel/x", request, 200, (), 0.1, 1.0, reads, End("closed", 500.0))
    return cancel_case("x", recording, polls, log, None, prompt_tokens, beside)


def test_tokens_after_the_close_are_counted_by_the_slot() -> None:
    """What was on its way when the slot was first asked is not counted."""
    look, busy, idle = poll(-300, True, 45), poll(3, True, 63), poll(20, False, 64)
    assert close([look, busy, idle], pieces=20).tokens_after_close == 1
    assert close([look, idle], pieces=20).tokens_after_close == 0
    assert close([look, busy], pieces=20).tokens_after_close is None  # never idle
    assert close([look, busy, idle]).tokens_after_close is None  # closed in prefill


def test_a_look_that_was_answered_after_the_close_tells_nothing() -> None:
    assert close([poll(-300, True, 45), poll(5, False, 50)], pieces=3).seen_busy is True
    assert close([poll(-1, False, 45), poll(5, False, 50)], pieces=3).seen_busy is None


@pytest.mark.parametrize(
    ("polls", "phase", "stop"),
    [
        ([poll(1, True, 60), poll(20, False, 61)], "generation", "stopped"),
        # to its own end: 200 tokens after the close, or two
        ([poll(1, True, 60), poll(3000, False, 260, finished=True)], "generation", "ran on"),
        ([poll(1, True, 258), poll(6, False, 260, finished=True)], "ended", "unknown"),
        ([poll(1, False, 260, finished=True)], "ended", "unknown"),
    ],
)
def test_a_close_in_generation(polls: list[Poll], phase: str, stop: str) -> None:
    case = close(polls, pieces=20)
    assert (case.phase, case.stop) == (phase, stop)


def counted(prompt_tokens: int) -> Recordings:
    """The same question, answered in full, with the count of its prompt."""
    usage = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":9}}' % prompt_tokens
    reads = (Read(9.0, b"data: %s\n\ndata: [DONE]\n\n" % usage),)
    request = Request("POST", "", {}, {"max_tokens": 9})
    return {
        "control": Recording("cancel/control", request, 200, (), 0.1, 1.0, reads, End("eof", 9.0))
    }


@pytest.mark.parametrize(
    ("polls", "beside", "phase", "stop"),
    [
        ([poll(1300, True, 170), poll(2600, False, 295, finished=True)], counted(40), "generation", "ran on"),
        # one token short: it was stopped, or came to another end
        ([poll(1300, True, 170), poll(2600, False, 294, finished=True)], counted(40), "prefill", "unknown"),
        # it was idle before anybody looked, or is still at work, or the prompt was never counted
        ([poll(1300, False, 295, finished=True)], counted(40), "prefill", "unknown"),
        ([poll(1300, True, 170), poll(2600, True, 295)], counted(40), "prefill", "unknown"),
        ([poll(1300, True, 170), poll(2600, False, 295, finished=True)], None, "prefill", "unknown"),
    ],
)  # fmt: skip
def test_a_close_before_anything_came_of_an_answer_that_was_held_back(
    polls: list[Poll], beside: Recordings | None, phase: str, stop: str
) -> None:
    case = close(polls, beside=beside)
    assert (case.phase, case.stop) == (phase, stop)


def test_a_slot_that_is_still_at_work_was_not_stopped() -> None:
    case = close([poll(1, True, 60), poll(30000, True, 210)], pieces=20)
    assert (case.phase, case.stop, case.proof) == ("generation", "ran on", "slots")
    # one answer, and then refusals: nobody saw what it did
    refused = Poll(29000.0, 29001.0, 429, "{}")
    assert close([poll(1, True, 60)], pieces=20).stop == "unknown"
    assert close([poll(1, True, 60), refused], pieces=20).waited_ms == 3.0


def test_the_tasks_of_others_are_seen() -> None:
    ours = poll(1, True, 60)
    theirs = replace(poll(40, True, 900), body=poll(40, True, 900).body.replace("7,", "9,"))
    idle = replace(poll(3000, False, 1900), body=poll(3000, False, 1900).body.replace("7,", "9,"))
    assert close([ours, theirs, idle], pieces=20).others
    both = json.dumps(json.loads(ours.body) + json.loads(theirs.body))
    assert close([replace(ours, body=both), idle], pieces=20).others
    was = json.loads(poll(1, False, 900).body.replace("7,", "5,"))
    assert not close(
        [replace(ours, body=json.dumps(json.loads(ours.body) + was))], pieces=20
    ).others
    # a slot that is idle may have been another's before
    assert not close([ours, poll(3000, False, 64)], pieces=20).others
    # by older answers without the tasks' numbers: more than ours may generate
    assert close([ours, poll(3000, False, 1900)], pieces=20).others


def test_of_several_cancels_ours_counts() -> None:
    """The look while it streamed says which task it is."""
    look = poll(-300, True, 45)
    log = b"task 7 | processing task\ntask 9 | processing task\ncancel task, id_task = 9\n"
    assert close([look, poll(3, False, 64)], pieces=20, log=log).log_line is None
    assert close([poll(3, False, 64)], pieces=20, log=log).log_line is not None
    ours = log + b"cancel task, id_task = 7\n"
    case = close([look, poll(3, False, 64)], pieces=20, log=ours)
    assert case.log_line == "cancel task, id_task = 7"


def test_a_log_that_talks() -> None:
    launched = b"slot launch_slot_: id 0 | task 7 | processing task\n"
    assert close([], pieces=3, log=launched).log_talks
    assert not close([], pieces=3, log=b"[GIN] 200 | POST /v1/chat/completions\n").log_talks
    assert not close([], pieces=3).log_talks


def test_reasoning_is_generation() -> None:
    thinking = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    case = close([poll(1, True, 60), poll(8, False, 61)], pieces=3, event=thinking)
    assert (case.phase, case.stop, case.tokens_after_close) == ("generation", "stopped", 1)


LINE = b"W srv          stop: cancel task, id_task = 7\n"


@pytest.mark.parametrize(
    ("polls", "prompt_tokens", "stop"),
    [
        # one batch of 512, then the server noticed
        ([poll(1300, False, 513)], 4100, "stopped"),
        # to the end, over two ends of a batch after somebody must have looked
        ([poll(1300, True, 512), poll(2600, True, 1024), poll(3900, True, 1536), poll(9000, False, 4100)], 4100, "ran on"),
        # the same, but the first end of a batch was the last
        ([poll(1300, True, 2048), poll(8000, True, 4096), poll(16300, False, 4100)], 4100, "unknown"),
        # to the end, but within the second in which nobody looks
        ([poll(1300, False, 4100)], 4100, "unknown"),
        # nobody counted: the log alone
        ([poll(1300, False, 513)], None, "stopped"),
    ],
)  # fmt: skip
def test_a_close_in_prefill(polls: list[Poll], prompt_tokens: int | None, stop: str) -> None:
    case = close(polls, prompt_tokens=prompt_tokens, log=LINE)
    assert (case.phase, case.stop) == ("prefill", stop)
    assert case.prompt_processed == json.loads(polls[-1].body)[0]["n_prompt_tokens"]


def test_a_slot_that_is_never_idle_has_processed_nobody_knows_what() -> None:
    assert close([poll(1300, True, 0)], prompt_tokens=4100).prompt_processed is None


@pytest.mark.parametrize(
    "line",
    [
        '{"asked_ms": NaN, "answered_ms": 1.0, "status": 200, "body": "[]"}',
        '{"asked_ms": 1.0, "answered_ms": 1' + "0" * 400 + ', "status": 200, "body": "[]"}',
        '{"asked_ms": 1.0, "answered_ms": 2.0, "status": 200, "body": 7}',
        '{"asked_ms": 1.0}',
        "[]",
        "nothing",
    ],
)
def test_a_list_of_answers_from_anywhere_is_checked(line: str) -> None:
    with pytest.raises((ValueError, ArtifactError)):
        load_polls(line)


def answered(event: bytes, beat_ms: float = 10.0) -> Recording:
    """Sixteen events and an end."""
    reads = [Read(beat_ms * number, event) for number in range(1, 17)]
    last = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    request = Request("POST", "", {}, {"max_tokens": 16})
    reads.append(Read(17 * beat_ms, last))
    return Recording("cancel/next", request, 200, (), 0.1, 1.0, tuple(reads), End("eof", 900.0))


THINKS = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
BLANK = b'data: {"choices":[{"delta":{}}]}\n\n'


@pytest.mark.parametrize(("event", "is_answered"), [(THINKS, True), (BLANK, False)])
def test_a_next_request_that_only_reasoned_was_answered(event: bytes, is_answered: bool) -> None:
    idle = Recording(
        "cancel/slots", Request("GET", "", {}, {}), 200, (), 0.1, 1.0, (), End("eof", 1.0)
    )
    found = {"slots": idle, "next": answered(event)}
    result = cancel_result(found, [replace(close([]), name="close-at")], None)
    assert (result.next_error is None) is is_answered


def test_in_prefill_the_rest_of_the_prompt_takes_its_time() -> None:
    """Idle after more than the answer would have taken: the log's line counts all the same."""
    beside = {"control": answered(THINKS)}
    polls = [poll(4900, True, 513), poll(5000, False, 513)]
    case = close(polls, log=LINE, beside=beside)
    assert (case.stop, case.proof) == ("stopped", "log")


def test_a_beat_is_not_that_of_a_reader_that_woke_late() -> None:
    together = [Read(114.0, THINKS)] * 15 + [Read(118.0, THINKS)]
    assert beat_of(derive(replace(answered(THINKS), reads=tuple(together)))) is None
    assert beat_of(derive(answered(THINKS))) == pytest.approx(10.0)


def test_a_short_rest_proves_nothing_by_its_time() -> None:
    """112 ms of the answer are left, and a healthy server may take a second to notice."""
    polls = [Poll(790.0, 800.0, 200, ONE_TOKEN)]
    beside = {"control": answered(THINKS, 1.0)}
    case = close(polls, pieces=20, beside=beside)
    assert (case.stop, case.proof, case.late) == ("ran on", "time", False)
    assert is_soon_by_time(case)
    assert not is_soon_by_time(replace(case, idle_after_ms=5000.0))


def test_an_end_just_after_the_close_without_counts_is_no_work_after_it() -> None:
    def uncounted(asked_ms: float, busy: bool, *, finished: bool = False) -> Poll:
        found = poll(asked_ms, busy, 0, finished=finished)
        return replace(found, body=found.body.replace('"n_prompt_tokens": 0', '"x": 0'))

    case = close([uncounted(3, True), uncounted(62, False, finished=True)], pieces=251)
    assert (case.phase, case.stop) == ("ended", "unknown")
