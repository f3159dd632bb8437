"""The judge of each step, and which relations only support another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..verdicts.times import CLOCK
from ..verdicts.verdict import Verdict
from .cache.judge import CACHE_ROWS, judge_cache
from .cancel.judge import LOGGED, PREFILL_STOPS, judge_cancel
from .prefill.judge import judge_prefill
from .report.judge import judge_report
from .sentence.judge import judge_sentence
from .server.judge import judge_server
from .sse.judge import judge_sse
from .ttft.judge import judge_ttft

SUPPORTING = frozenset((CLOCK, PREFILL_STOPS, LOGGED, *CACHE_ROWS[::2]))


def is_supporting(relation: str) -> bool:
    """Whether a relation only supports others of its step."""
    return relation in SUPPORTING or relation.split()[:2] == ["prompt_n", "grows"]


JUDGES: Mapping[str, Callable[[Any], list[Verdict]]] = {
    "server": judge_server,
    "sse": judge_sse,
    "ttft": judge_ttft,
    "prefill": judge_prefill,
    "cache": judge_cache,
    "sentence": judge_sentence,
    "cancel": judge_cancel,
    "report": judge_report,
}
# What is worth measuring at the server behind, too.
MEASURED_BEHIND = tuple(step for step in JUDGES if step not in ("server", "report"))
