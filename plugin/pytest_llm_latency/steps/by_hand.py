"""What a directory that was made by hand holds, and how its steps are checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..evidence.artifacts import Cache, Cancel, Chunk, PrefillRow, Report, Sentence, Ttft
from ..evidence.timeline import Timeline

# Single times of the same request were seen to differ by 20 on a busy machine.
SAME_QUESTION_FACTOR = 30.0
SECONDS = (300.0, 3000.0)  # a ratio between two times that says that one of them is in seconds
LAB_TOKENS, CANCEL_TOKENS = 64, 256


@dataclass(frozen=True)
class Given:
    """The files of a directory, parsed; None: it is not there, or is no such file. `stream` is
    what sse_raw.txt says, without times."""

    chunks: tuple[Chunk, ...] | None = None
    stream: Timeline | None = None
    ttft: Ttft | None = None
    prefill: tuple[PrefillRow, ...] | None = None
    cache: Cache | None = None
    sentence: Sentence | None = None
    cancel: Cancel | None = None
    report: Report | None = None
    log: bytes | None = None

    @property
    def longest(self) -> PrefillRow | None:
        """The prefill row that has the cache step's very prompt."""
        return self.prefill[-1] if self.prefill else None


Problem = tuple[str, str] | None  # (cause code, what was found, expected and why)


def in_seconds(where: str, found_ms: float, about_ms: float, because: str) -> Problem:
    """Whether a time is a thousandth of what it must be."""
    if found_ms <= 0 or not SECONDS[0] <= about_ms / found_ms <= SECONDS[1]:
        return None
    return (
        "wrong-unit",
        f"{where}: found {found_ms:.6g}, expected about {about_ms:.6g}, because {because}: are "
        "these seconds? All times are milliseconds",
    )


def server_time_ms(stream: Timeline | None) -> float | None:
    """How long the server itself worked on the answer in sse_raw.txt."""
    if stream is None or stream.prompt_ms is None or stream.predicted_ms is None:
        return None
    return stream.prompt_ms + stream.predicted_ms


def same_question(where: str, found_ms: float, other: str, about_ms: float) -> Problem:
    """Two times to first text of one question."""
    factor = max(found_ms, about_ms) / max(min(found_ms, about_ms), 1e-9)
    if factor <= SAME_QUESTION_FACTOR:
        return None
    return (
        "wrong-unit" if factor >= SECONDS[0] else "other-question",
        f"{where}: found {found_ms:.6g}, expected about {about_ms:.6g} ({other}), because both are "
        f"the time to first text of the same question, and differ {factor:,.0f} times (allowed: "
        f"{SAME_QUESTION_FACTOR:.0f}): another unit, or another moment?",
    )
