"""Closes a stream and watches what shows the server at work until it is idle."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import sse
from ...errors import ServerError, StreamError
from ...evidence.activity import ONE_TOKEN, Poll, dump_polls, our_task, shown_answer
from ...evidence.derive import derive
from ...evidence.recording import Recording, Reply
from ...evidence.server_log import cancel_line
from ...servers.logs import RunLog
from ...wire.exchange import Exchange
from ..bench import Bench
from ..legs import Question
from ..rounds import Legs
from .asks import AFTER_CLOSE, STIR
from .case import CancelCase, LogSpan, cancel_case
from .idle import watched_by

# In prefill a llama.cpp server looks at the client's socket after a second without news,
# and every answer that it gives, /slots included, restarts that second.
POLL_IN_PREFILL_S = 1.3
POLL_IN_GENERATION_S = 0.005
IDLE_DEADLINE_S = 30.0
IDLE_DEADLINE_IN_PREFILL_S = 120.0
LOG_DEADLINE_S = 2.0
LOG_POLL_S = 0.05
SLOTS_REFUSALS_AT_MOST = 5
STIR_FIRST_S, STIR_S = 0.1, 1.0
STIR_IN_PREFILL_S = 5.0
POLLED_AT_MOST = 16 * 1024 * 1024  # characters of all answers, which are kept
POLL_GAUGE_S = 0.05  # its answer may be long


def ask_one_token(bench: Bench, name: str) -> Recording:
    # Its moment is what tells: one that a limit puts off would tell of another.
    return bench.record("cancel", name, waits=False)


@dataclass(frozen=True)
class Close:
    """A close as it was watched; see `cancel_case`."""

    name: str
    recording: Recording
    polls: Sequence[Poll]
    log: bytes | None
    log_span: LogSpan | None
    prompt_tokens: int | None

    def case(self, beside: Legs) -> CancelCase:
        """What it gave, by the recordings of the step so far. Raises StreamError."""
        return cancel_case(
            self.name, self.recording, self.polls, self.log, self.log_span, self.prompt_tokens,
            beside,
        )  # fmt: skip


@dataclass(frozen=True)
class Watcher:
    """Closes a stream and watches the slot and the log."""

    bench: Bench
    log: RunLog | None
    found: Legs

    @property
    def way(self) -> str | None:
        """What shows whether the server is idle."""
        return watched_by(self.found)[0]

    @property
    def path(self) -> str | None:
        """The endpoint that shows it."""
        offered = self.bench.behind_offers
        return {"/slots": offered.slots or "/slots", "/metrics": offered.metrics}.get(
            self.way or ""
        )

    def close(
        self,
        name: str,
        question: Question,
        *,
        close_at_ms: float | None = None,
        close_on_token: bool = False,
        looks: bool = False,
        prompt_tokens: int | None = None,
    ) -> Close:
        """One close, watched until the slot is idle or the deadline has passed. `looks`: ask
        /slots once while the answer streams, to know that it shows this server's."""
        log_from = self.log.size() if self.log is not None else 0
        before: list[tuple[float, float, Reply]] = []

        def look() -> None:
            with contextlib.suppress(ServerError):
                before.append(self._ask())

        # Beside the reading, which must not wait for the answer.
        looker = threading.Thread(target=look, daemon=True)
        exchange = Exchange(
            self.bench.client,
            f"cancel/{name}",
            close_at_ms,
            close_on_token,
            looker.start if looks and self.path is not None else None,
        )
        recording = exchange.run(question.body())
        if looker.ident is not None:
            looker.join()
        timeline = derive(recording)
        in_prefill = timeline.first_token_ms is None
        polls = [poll_of(exchange.closed_at, *seen) for seen in before]
        if self.path is not None:
            polls += self._poll(name, exchange.closed_at, in_prefill)
        elif self.way is not None and not timeline.done:
            polls += self._one_token(name, exchange.closed_at)
        self.bench.keep_text(f"cancel/{name}.polls.jsonl", dump_polls(polls))
        self.found[name] = recording
        part, span = None, None
        if self.log is not None:
            # An answer that came to its own end has no such line to wait for.
            ended = timeline.done or timeline.finish_reason is not None
            if not in_prefill and polls:
                ended = ended or polls[-1].answer.finished is True
            patience_s = 0.0 if ended else LOG_DEADLINE_S
            part, span = self._wait_for_line(self.log, log_from, patience_s, our_task(polls))
        close = Close(name, recording, polls, part, span, prompt_tokens)
        close.case(self.found)  # raises where there was no answer to close
        return close

    def extra_close(self, name: str, *args: Any, **kwargs: Any) -> list[Close]:
        """A close beside the contract's; where it fails, that is only noted."""
        try:
            return [self.close(name, *args, **kwargs)]
        except StreamError as error:
            self.bench.note("cancel", f"a close could not be measured: {error}")
            return []

    def _poll(self, name: str, closed: float, in_prefill: bool) -> list[Poll]:
        """Ask /slots until no slot is busy. Times count from `closed` (`sse.now()`).

        A gauge of /metrics stands still when its last request was taken away, until there is a
        next one (vLLM's does): so there is one, of a token, before it is believed, and then again,
        after 0.1 s, 0.2 s and so on up to every second. In prefill more seldom: it restarts the
        second after which llama.cpp looks.
        """
        pause_s = POLL_IN_PREFILL_S if in_prefill else POLL_IN_GENERATION_S
        deadline_s = IDLE_DEADLINE_IN_PREFILL_S if in_prefill else IDLE_DEADLINE_S
        polls: list[Poll] = []
        refusals = 0
        is_gauge = self.way == "/metrics"
        stir_s = STIR_IN_PREFILL_S if in_prefill else STIR_FIRST_S
        stirred = closed if in_prefill else 0.0
        if is_gauge and not in_prefill:
            pause_s = POLL_GAUGE_S
        if in_prefill:
            sse.pause(pause_s)
        size = 0
        while (
            sse.now() - closed < deadline_s
            and refusals < SLOTS_REFUSALS_AT_MOST
            and size < POLLED_AT_MOST
        ):
            if is_gauge and sse.now() - stirred > stir_s:
                ask_one_token(self.bench, f"{STIR}{name}")
                stirred = sse.now()
                stir_s = max(stir_s, min(2 * stir_s, STIR_S))
            try:
                poll = poll_of(closed, *self._ask())
            except ServerError:
                refusals += 1
                sse.pause(pause_s)
                continue
            polls.append(poll)
            size += len(poll.body)
            if poll.busy is False:
                break
            sse.pause(pause_s)
        return polls

    def _one_token(self, name: str, closed: float) -> list[Poll]:
        """Ask for one token; its first text says when the server was free to make it."""
        begun = sse.now()
        timeline = derive(ask_one_token(self.bench, f"{AFTER_CLOSE}{name}"))
        if timeline.first_token_ms is None or timeline.error is not None:
            return []
        asked_ms = (begun - closed) * 1000.0
        return [
            Poll(round(asked_ms, 3), round(asked_ms + timeline.first_token_ms, 3), 200, ONE_TOKEN)
        ]

    def _ask(self) -> tuple[float, float, Reply]:
        """(asked, answered, answer) of /slots or /metrics, by `sse.now()`."""
        begun = sse.now()
        assert self.path is not None
        reply = self.bench.behind.get(self.path, timeout_s=IDLE_DEADLINE_S)
        return begun, sse.now(), reply

    def _wait_for_line(
        self, log: RunLog, log_from: int, patience_s: float, task: int | None
    ) -> tuple[bytes, LogSpan]:
        """The part of the log in which our task's cancel line should be; waits for the line
        a little, since logs come late."""
        deadline = sse.now() + patience_s
        while True:
            part = log.read(log_from)
            if cancel_line(part, task) is not None or sse.now() > deadline:
                return part, LogSpan(log_from, log_from + len(part))
            sse.pause(LOG_POLL_S)


def poll_of(closed: float, asked: float, answered: float, reply: Reply) -> Poll:
    """With times in milliseconds from the close."""
    return Poll(
        round((asked - closed) * 1000.0, 3),
        round((answered - closed) * 1000.0, 3),
        reply.status,
        shown_answer(reply.status, reply.body),
    )
