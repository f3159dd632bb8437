"""Who is to blame: the server, or what stands before it; or a limit that refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import LatencyError, RateLimited, ServerError, StreamError
from .causes import ASK_BEHIND
from .verdict import Cause, Verdict, outcome_of


def told_apart(verdicts: Sequence[Verdict], behind: Sequence[Verdict] | str) -> list[Verdict]:
    """The verdicts on a server that stands before another, with who is to blame for what is
    broken: `behind` are the same step's verdicts on the other, or a sentence where there are
    none."""
    told = []
    for verdict in verdicts:
        if verdict.outcome == "broken" and verdict.cause is not None:
            words = behind if isinstance(behind, str) else _who(verdict, verdicts, behind)
            sentence = verdict.cause.sentence.replace(ASK_BEHIND, "")
            cause = replace(verdict.cause, sentence=f"{sentence}. {words}")
            verdict = replace(verdict, cause=cause)
        told.append(verdict)
    return told


def upstream_words(error: LatencyError) -> str:
    """Why there are no verdicts on the server behind: it fails, or it could not be asked."""
    if isinstance(error, (StreamError, ServerError)) and not isinstance(error, RateLimited):
        return f"The server behind, asked directly, fails, too: {error}"
    return f"The server behind could not be measured: {error}"


def _who(verdict: Verdict, beside: Sequence[Verdict], behind: Sequence[Verdict]) -> str:
    """Who is to blame, by the same relation at the server behind; where nothing shows it there (it
    has no log), by another that is broken for the same cause."""
    code = verdict.cause and verdict.cause.code
    alike = [one.relation for one in beside if one.cause is not None and one.cause.code == code]
    for relation in (verdict.relation, *alike):
        same = next((one for one in behind if one.relation == relation), None)
        if same is not None and same.outcome == "holds":
            return (
                f"Measured directly at the server behind, it holds ({same.numbers}): what stands "
                "between is to blame"
            )
        if same is not None and same.outcome == "broken":
            return (
                f"Measured directly at the server behind, it is broken, too ({same.numbers}): "
                "what stands between is not to blame"
            )
    return "At the server behind it could not be told"


def refused_by_limit(step: str, error: RateLimited) -> Verdict:
    """A step whose requests a limit refused: it proves nothing."""
    cause = Cause("rate-limited", str(error))
    return Verdict(step, "the step can be measured", outcome_of(cause), "refused by a limit", cause)
