"""What the cancel step gives, derived from its recordings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ArtifactError
from ...evidence.artifacts import Cancel
from ...evidence.derive import derive
from ..answers import raise_if_limited, unanswered
from ..legs import Recordings, leg_of
from .case import CancelCase
from .idle import watched_by
from .legs import CANCEL_CLOSE_AT, CANCEL_NEXT


@dataclass(frozen=True)
class CancelResult:
    """Step 7. `watched_by` is what showed whether the server is idle: "/slots", "/metrics", or a
    "1-token request"; None: nothing did, and `unwatched` says why.
    `log_source` is None where there is no log. `next_error` is what went wrong with the next
    request, None: it was answered. `cases[0]` is the contract's; where only the file is there
    are none, and `log_line` is any cancel line of the log."""

    cancel: Cancel
    cases: tuple[CancelCase, ...]
    watched_by: str | None
    unwatched: str | None
    log_source: str | None
    log_line: str | None
    next_error: str | None


def cancel_result(
    recordings: Recordings, cases: Sequence[CancelCase], log_source: str | None
) -> CancelResult:
    """From the closes in the order in which they were made, and the recordings beside them (see
    `watched_by`, and "next")."""
    by_name = {case.name: case for case in cases}
    if CANCEL_CLOSE_AT not in by_name:
        raise ArtifactError(f"the evidence lacks the request {CANCEL_CLOSE_AT!r}")
    contract = by_name[CANCEL_CLOSE_AT]
    if contract.phase == "ended":
        # An answer that had ended proves nothing; one closed in time does, in either phase.
        in_time = [case for case in cases if case.phase != "ended"]
        in_time.sort(key=lambda case: (case.stop == "unknown", case.phase == "prefill"))
        contract = in_time[0] if in_time else contract
    watched, unwatched = watched_by(recordings)
    raise_if_limited(derive(leg_of(recordings, CANCEL_NEXT)))
    return CancelResult(
        cancel=Cancel(
            contract.max_tokens,
            contract.received_tokens,
            contract.closed_at_ms,
            contract.idle_after_ms,
        ),
        cases=(contract, *(case for case in cases if case is not contract)),
        watched_by=watched,
        unwatched=unwatched,
        log_source=log_source,
        log_line=contract.log_line,
        next_error=unanswered(leg_of(recordings, CANCEL_NEXT)),
    )
