"""What a server says that limits how often it is asked, and how long to wait then. Pure.

Nothing is proven about a stream that was never begun: who is told to wait waits and asks again.
"""

from __future__ import annotations

import email.utils
import re

from ..sse import error_words, shown_words, value_of
from .recording import Recording

WAIT_AT_MOST_S = 60.0
WAITS_AT_MOST = 5
FIRST_WAIT_S = 1.0  # where no wait is told; twice as long each time
_LIMITS = (429, 529)
# What no waiting helps with.
_SPENT = re.compile(rb"insufficient_quota|billing|credit", re.I)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|millisec|h|m|s)[a-z]*\s*"
_TOLD = re.compile(rf"(?:try again|retry|wait)\D{{0,20}}?((?:{_PART})+)", re.I)


def is_limited(recording: Recording) -> bool:
    """Whether a server refuses a request because it is asked too often, or has too much to do."""
    return recording.status in _LIMITS or (
        recording.status == 503 and "retry-after" in _headers(recording)
    )


def asked_wait_s(recording: Recording) -> float | None:
    """How long the server wants to be waited for; None: it does not say."""
    headers = _headers(recording)
    told = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", told):
        return float(told)
    try:  # by the server's clock: ours may be another
        until, now = map(email.utils.parsedate_to_datetime, (told, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        pass
    match = _TOLD.search(recording.body.decode("utf-8", "replace"))
    if match is None:
        return None
    parts = re.findall(_PART, match.group(1), re.I)
    return round(sum(float(number) * _UNITS[_unit(unit.lower())] for number, unit in parts), 3)


def _unit(name: str) -> str:
    return "ms" if name.startswith(("ms", "milli")) else name


def pause_s(recording: Recording, waits: int) -> float | None:
    """How long to wait before the request is sent again, having waited `waits` times; None: it is
    not to be sent again."""
    if not is_limited(recording) or waits >= WAITS_AT_MOST or _SPENT.search(recording.body):
        return None
    asked_s = asked_wait_s(recording)
    if asked_s is None:
        return float(FIRST_WAIT_S * 2**waits)
    return asked_s if asked_s <= WAIT_AT_MOST_S else None


def words(recording: Recording) -> str | None:
    """What to tell of a request that a limit refused; None: none did."""
    if not is_limited(recording):
        return None
    value = value_of(recording.body)
    told = error_words(value) if isinstance(value, dict) else None
    said = told or shown_words(recording.body.decode("utf-8", "replace"))[:200] or "(empty body)"
    asked_s = asked_wait_s(recording)
    asked = "does not say for how long" if asked_s is None else f"wants {asked_s:g} s of waiting"
    return (
        f"the server limits how often it is asked and {asked} (HTTP {recording.status}: {said}); "
        "nothing is proven about its streams. Measure later, with a larger quota, or fewer steps "
        "in a run (-k)"
    )


def _headers(recording: Recording) -> dict[str, str]:
    return {name.lower(): value for name, value in recording.response_headers}
