"""What each step of the lab gives: its artifact, and what the relations need beside it.

Data only: made by `steps.py` from a server, judged by `relations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .artifacts import Cache, Cancel, Chunk, PrefillRow, Report, Sentence, Ttft
from .recording import Reply
from .timeline import Timeline

Phase = Literal["prefill", "generation", "ended"]


@dataclass(frozen=True)
class ServerResult:
    """Step 1: the two bodies as received, and as JSON (None where they are none)."""

    health: Reply
    props: Reply


@dataclass(frozen=True)
class SseResult:
    """Step 2: the raw bytes, the pieces that `sse.stream` returned, the derived timeline."""

    raw: bytes
    chunks: tuple[Chunk, ...]
    timeline: Timeline


@dataclass(frozen=True)
class TtftResult:
    """Step 3."""

    ttft: Ttft
    timelines: tuple[Timeline, ...]


@dataclass(frozen=True)
class PrefillResult:
    """Step 4. `timelines` are the cold legs of all rounds."""

    rows: tuple[PrefillRow, ...]
    timelines: tuple[Timeline, ...]


@dataclass(frozen=True)
class CacheResult:
    """Step 5. `legs` are the timelines of the last round by name; `prompts` the system
    prompts of the legs, to say where two of them part."""

    cache: Cache
    legs: Mapping[str, Timeline]
    prompts: Mapping[str, str]


@dataclass(frozen=True)
class SentenceResult:
    """Step 6."""

    sentence: Sentence
    timeline: Timeline


@dataclass(frozen=True)
class CancelCase:
    """One close. `idle_after_ms` counts from the close, None: not seen idle, or no `/slots`;
    the slot was last seen busy `resolution_ms` before that. `log_line` names our task."""

    name: str
    phase: Phase
    max_tokens: int
    received_tokens: int
    closed_at_ms: float
    idle_after_ms: float | None
    resolution_ms: float | None
    waited_ms: float | None
    log_line: str | None


@dataclass(frozen=True)
class CancelResult:
    """Step 7. `slots_missing` says why the slot could not be watched, None: it could.
    `log_source` is None where there is no log. `next_error` is what went wrong with the next
    request, None: it was answered. `cases[0]` is the contract's."""

    cancel: Cancel
    cases: tuple[CancelCase, ...]
    slots_missing: str | None
    log_source: str | None
    next_error: str | None


@dataclass(frozen=True)
class ReportResult:
    """Step 8: the file as written and read back, and what its sources say."""

    report: Report
    expected: Report
