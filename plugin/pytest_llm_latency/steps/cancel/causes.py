"""Why a close did not stop the server, or cannot be told to have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...verdicts.causes import ASK_BEHIND
from ...verdicts.verdict import Cause
from .case import CancelCase, tokens_in_time


def cancel_ignored(case: CancelCase) -> Cause:
    """The slot worked on after the close."""
    waited = f"{(case.waited_ms or 0) / 1000:.1f} s"
    if case.log_line is not None:
        return Cause(
            "cancel-logged-but-running",
            f"the log says {case.log_line!r}, and yet the slot was busy {waited} after the close",
        )
    to_its_end = case.stop == "ran on" and case.idle_after_ms is not None
    how = "generated to the end of its answer" if to_its_end else "was still busy"
    if case.proof == "time":
        how = "was idle only after as long as the rest of the answer takes"
    more = f" ({case.tokens_after_close} more tokens)" if case.tokens_after_close else ""
    return Cause(
        "cancel-ignored",
        f"the slot {how}{more}, {waited} after the close: the disconnect never reached the server. "
        f"A proxy between? In nginx: proxy_ignore_client_abort off{ASK_BEHIND}",
    )


def cancel_late(case: CancelCase) -> Cause | None:
    """The generation stopped, but went on for long after the close."""
    after = case.tokens_after_close
    rest = case.max_tokens - case.tokens_before_close
    if after is None or after <= tokens_in_time(rest):
        return None
    return Cause(
        "cancel-late",
        f"in generation, {after} more tokens were generated after the close of at most {rest}; "
        "the next token is where a server can notice: something on the way holds the "
        "disconnect back",
    )


def cancel_slow(cases: Sequence[CancelCase]) -> Cause:
    """Every close in generation was followed late, by the server's own beat."""
    waited = " and ".join(f"{one.idle_after_ms or 0.0:.0f}" for one in cases)
    said = "" if cases[0].log_line is None else f", although the log says {cases[0].log_line!r}"
    return Cause(
        "cancel-late",
        f"the server was idle only {waited} ms after the closes{said}: longer than the next tokens "
        "take at its own beat, which is where a close can be noticed. Something on the way holds "
        f"the disconnect back, or the server looks for it too seldom{ASK_BEHIND}",
    )


def prefill_unseen(case: CancelCase | None) -> str | None:
    """Why a close in prefill cannot be judged; None: it can."""
    if case is None:
        return "no close in prefill could be measured"
    if case.phase != "prefill":
        return "the prompt was processed before the close: prefill is too fast here, or cached"
    if case.others:
        return "/slots showed tasks of others meanwhile"
    if case.idle_after_ms is None:
        return "nothing shows when the server was idle"
    if case.prompt_tokens is None or case.prompt_processed is None:
        return "the tokens of the prompt that were processed are not told (/tokenize, /slots)"
    if case.stop == "unknown":
        return (
            "all of the prompt was processed, and whether it could have been stopped before is "
            "not seen: a server notices at the end of a batch, a second after the close or later"
        )
    return None


def prefill_late(case: CancelCase) -> Cause:
    """The whole prompt was processed although its reader had gone."""
    return Cause(
        "cancel-late-in-prefill",
        f"the connection was closed {case.closed_at_ms:.0f} ms after the request, and all "
        f"{case.prompt_processed} prompt tokens were processed still; at the end of a batch (by "
        "default 2,048 tokens) a server can notice. Look for a proxy that tells of a disconnect "
        "only when it next sends (in HAProxy: option abortonclose; in nginx: "
        f"proxy_ignore_client_abort off){ASK_BEHIND}",
    )


CANCEL_UNPROVEN = Cause(
    "cancel-unproven",
    "the slot went idle, but nothing tells a cancelled answer from one that came to its own end: "
    "give the server's log (--llm-log, --llm-log-command), or ask for a longer answer "
    "(llm_plan.cancel_max_tokens)",
)
SLOTS_BLIND = Cause(
    "slots-blind",
    "while an answer was streaming, /slots (or /metrics) said that nothing was busy: does "
    "something between you and the server (a balancer, a cache) answer it for another one?",
)
OTHERS_AT_THE_CLOSE = Cause(
    "others-use-the-server",
    "after the close /slots showed tasks of others, and whose work went on cannot be told: measure "
    "again when nobody else uses the server",
)
UNANSWERED = Cause(
    "unanswered",
    "after the close nothing answered the question whether the server is idle: is it overloaded, "
    "or does it limit how often it is asked?",
)
GAUGE_NEVER_IDLE = Cause(
    "gauge-never-idle",
    "/metrics never showed an idle server, and counts the requests of everybody: measure again "
    "when nobody else uses it, or give the server's log (--llm-log, --llm-log-command)",
)
