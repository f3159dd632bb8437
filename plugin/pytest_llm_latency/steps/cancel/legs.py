"""The names of the cancel step's legs. Pure."""

from __future__ import annotations

CANCEL_NEXT = "next"
CANCEL_CONTROL = "control"
CANCEL_PREFILL = "prefill"
CANCEL_TOKENS = "prefill-tokens"
CANCEL_SLOTS = "slots"
CANCEL_METRICS = "metrics"
CANCEL_ONE_TOKEN = "one-token-"
CANCEL_TWO = ("two-at-once-long", "two-at-once-short")
CANCEL_CLOSE_AT = "close-at"
CANCEL_FIRST_PIECE = "first-piece"
ONE_TOKEN_RUNS = 5


def is_close(name: str) -> bool:
    """Whether a recording of the cancel step is a close."""
    return name in (CANCEL_CLOSE_AT, CANCEL_PREFILL) or name.startswith(CANCEL_FIRST_PIECE)


def order_of_closes(name: str) -> tuple[bool, bool, str]:
    """In the order in which the closes were made."""
    return (name == CANCEL_PREFILL, name != CANCEL_CLOSE_AT, name)
