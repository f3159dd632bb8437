"""Latency of a streaming LLM server: read by hand, measured, judged by relations in one run.

All that a user's own tests name is here; every other module is this package's own business.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import errors, relations
    from .evidence.recording import Recording
    from .evidence.timeline import Piece, Timeline
    from .lab.protocol import Lab
    from .plan import Plan
    from .session.base import Expect
    from .verdicts.decision import decide
    from .verdicts.verdict import Cause, Verdict
    from .wire.client import Client

__all__ = [
    "Cause",
    "Client",
    "Expect",
    "Lab",
    "Piece",
    "Plan",
    "Recording",
    "Timeline",
    "Verdict",
    "decide",
    "errors",
    "relations",
]
# Loaded when they are first named: a suite that only has the plugin installed pays for none.
_PLACES = {
    "Cause": "verdicts.verdict",
    "Client": "wire.client",
    "Expect": "session.base",
    "Lab": "lab.protocol",
    "Piece": "evidence.timeline",
    "Plan": "plan",
    "Recording": "evidence.recording",
    "Timeline": "evidence.timeline",
    "Verdict": "verdicts.verdict",
    "decide": "verdicts.decision",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "relations"):
        return importlib.import_module(f".{name}", __name__)
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
