"""Measures the cancel step."""

from __future__ import annotations

import threading

from ... import sse
from ...errors import BudgetError
from ...evidence.activity import answer_of
from ...evidence.derive import derive
from ...plan import new_salt
from ...servers.logs import RunLog
from ...wire.exchange import Exchange
from ..answers import counted_tokens
from ..bench import Bench
from ..legs import Question
from ..rounds import Legs
from .asks import BEFORE_ONE_TOKEN, LONGER_ANSWERS, PREFILL_CASE_CLOSE_AT_MS
from .case import CancelCase, is_soon_by_time
from .idle import MEASURABLE_MS, serves_several, watched_by
from .legs import (
    CANCEL_CLOSE_AT,
    CANCEL_CONTROL,
    CANCEL_FIRST_PIECE,
    CANCEL_METRICS,
    CANCEL_NEXT,
    CANCEL_ONE_TOKEN,
    CANCEL_PREFILL,
    CANCEL_SLOTS,
    CANCEL_TOKENS,
    CANCEL_TWO,
    ONE_TOKEN_RUNS,
)
from .result import CancelResult, cancel_result
from .watch import POLL_IN_GENERATION_S, Close, Watcher, ask_one_token

PREFILL_TOKENS = 4096
QUIET_DEADLINE_S = 5.0
# A busy machine was seen to send the short request of two 200 ms after the long one's first piece.
SENT_LATE_AT_MOST_MS = 1000.0


def measure_cancel(bench: Bench, log: RunLog | None) -> CancelResult:
    """Step 7: close at the contract's moment, and in both phases; then ask once more."""
    plan = bench.plan
    recordings = _watching(bench)
    watcher = Watcher(bench, log, recordings)
    bench.progress(f"cancel, closing at {plan.cancel_close_at_ms / 1000:g} s")
    closes = [
        watcher.close(
            CANCEL_CLOSE_AT,
            bench.question("cancel", CANCEL_CLOSE_AT),
            close_at_ms=plan.cancel_close_at_ms,
            looks=True,
        )
    ]
    first = closes[0].case(recordings)
    if watcher.way is not None and first.proof not in ("log", "slots"):
        # Times decide: is the server as fast as before the close?
        recordings[CANCEL_CONTROL] = bench.record("cancel", CANCEL_CONTROL)
        first = closes[0].case(recordings)
    ran_on_before = first.stop == "ran on"
    for attempt in range(1, len(LONGER_ANSWERS) + 1):
        bench.progress("cancel, closing after the first piece")
        name = f"{CANCEL_FIRST_PIECE}-{attempt}"
        closes += watcher.extra_close(name, bench.question("cancel", name), close_on_token=True)
        last = closes[-1].case(recordings)
        # One that lasted, and still could not be closed in time, is held back on its way: a
        # longer one would be, too.
        lasted = last.phase == "ended" and last.closed_at_ms > 2 * plan.cancel_close_at_ms
        # By times alone a longer one tells more, unless two agree; a slot that was not seen idle
        # will not be.
        by_time = last.stop == "ran on" and last.proof == "time"
        agreed = ran_on_before and not is_soon_by_time(last)
        told = last.stop != "unknown" and (agreed or not by_time)
        ran_on_before |= last.stop == "ran on"
        told = told or watcher.way is None or last.idle_after_ms is None
        if lasted or (last.phase == "generation" and told):
            break
    if first.phase == "ended":
        bench.note(
            "cancel",
            f"the answer had ended before the close at {plan.cancel_close_at_ms:g} ms, which "
            "proves nothing: measured again with a close right after the first piece "
            f"(max_tokens {last.max_tokens})",
        )
    closes += _closed_in_prefill(bench, watcher, recordings)
    bench.progress("cancel, the next request")
    recordings[CANCEL_NEXT] = bench.record("cancel", CANCEL_NEXT)
    cases = [close.case(recordings) for close in closes]
    _note_prefill(bench, cases[-1])
    return cancel_result(recordings, cases, log.source if log is not None else None)


def _closed_in_prefill(bench: Bench, watcher: Watcher, recordings: Legs) -> list[Close]:
    """A close during a long prefill. One that did not stop it is made again, and the second counts:
    llama.cpp's own server was seen to look at its client no more than once in six seconds."""
    while True:
        bench.progress("cancel, closing during a long prefill")
        long_prompt = _long_prompt(bench)
        question = bench.token_question(long_prompt.messages)
        tokens = None
        if question is not None:
            tokens = bench.behind.fetch("/tokenize", f"cancel/{CANCEL_TOKENS}", question)
        is_first = CANCEL_PREFILL not in recordings
        closes = watcher.extra_close(
            CANCEL_PREFILL,
            long_prompt,
            close_at_ms=PREFILL_CASE_CLOSE_AT_MS,
            prompt_tokens=counted_tokens(tokens),
        )
        case = closes[0].case(recordings) if closes else None
        if case is None or case.stop != "ran on" or not is_first:
            return closes
        bench.note(
            "cancel",
            f"a close in prefill did not stop it ({case.prompt_processed} of {case.prompt_tokens} "
            f"tokens processed, idle {case.idle_after_ms or 0:.0f} ms later): made once more, and "
            "that counts",
        )


def _note_prefill(bench: Bench, case: CancelCase) -> None:
    """What became of a close in prefill where it is not judged."""
    if case.phase != "prefill" or case.stop != "unknown" or case.idle_after_ms is None:
        return
    bench.note(
        "cancel",
        f"closed in prefill {case.closed_at_ms:.0f} ms after the request, the server was idle "
        f"{case.idle_after_ms:.0f} ms later (to within {case.resolution_ms or 0:.0f} ms); whether "
        "the close did that cannot be told here",
    )


def _watching(bench: Bench) -> Legs:
    """Find out, in this order, what shows whether the server is idle: /slots, a gauge in
    /metrics, or a request for one token. The recordings say it (see `idle.watched_by`)."""
    found: Legs = {}
    client, offered = bench.behind, bench.behind_offers
    ways = [(CANCEL_SLOTS, offered.slots or "/slots")]
    if offered.slots is None and offered.metrics is not None:
        ways.append((CANCEL_METRICS, offered.metrics))
    for name, path in ways:
        # What the step before left running is waited for; others' requests are not.
        deadline = sse.now() + QUIET_DEADLINE_S
        while True:
            found[name] = client.fetch(path, f"cancel/{name}")
            busy = answer_of(found[name].status or 0, found[name].body).busy
            if not busy or sse.now() > deadline:
                break
            sse.pause(POLL_IN_GENERATION_S)
    if watched_by(found)[0] is None and busy is None:
        bench.progress("cancel, one request at a time?")
        found |= _two_at_once(bench)
    return found


def _two_at_once(bench: Bench) -> Legs:
    """A long answer, and a short one asked for when the long one has begun; then how long a
    1-token request takes after another that has ended."""
    long_name, short_name = CANCEL_TWO
    found: Legs = {}
    spent: list[BudgetError] = []

    def ask_short() -> None:
        try:
            found[short_name] = ask_one_token(bench, short_name)
        except BudgetError as error:
            spent.append(error)

    # Of the fastest an answer may be over too soon to tell, or before the short one is sent.
    for factor in LONGER_ANSWERS[:2]:
        beside = threading.Thread(target=ask_short, daemon=True)
        exchange = Exchange(bench.client, f"cancel/{long_name}", on_token=beside.start)
        question = bench.question("cancel", long_name, times=factor)
        limit = question.max_tokens
        found[long_name] = exchange.run(question.body())
        if beside.ident is None:  # no text came
            return found
        beside.join()
        if spent:
            raise spent[0]
        moments = derive(found[long_name]).token_ms
        waited = serves_several(found) is None
        long_enough_ms = MEASURABLE_MS if waited else SENT_LATE_AT_MOST_MS
        if len(moments) < limit or moments[-1] - moments[0] >= long_enough_ms:
            break
    if serves_several(found) is None:
        for number in range(1, ONE_TOKEN_RUNS + 1):
            # As after a close: what the server holds is another prompt.
            bench.ask("cancel", f"{BEFORE_ONE_TOKEN}{number}")
            name = f"{CANCEL_ONE_TOKEN}{number}"
            found[name] = ask_one_token(bench, name)
    return found


def _long_prompt(bench: Bench) -> Question:
    """A prompt of several batches, so that one batch can be told from all: the documents again
    and again, as far as the context goes. Where nobody counts, the documents once."""
    plan, salt = bench.plan, new_salt()
    once = bench.question("cancel", CANCEL_PREFILL, salt)
    none, some = (bench.count_tokens(m) for m in (plan.with_documents((), salt), once.messages))
    context = bench.context()
    if none is None or some is None or some <= none or not context:
        return once
    wanted = min(PREFILL_TOKENS, context - plan.kb_max_tokens - 1) - none
    return bench.question("cancel", CANCEL_PREFILL, salt, max(1, wanted // (some - none)))
