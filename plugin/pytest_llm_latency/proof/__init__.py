"""What the files of a run disprove: its requests, recordings, closes and facts against each other.

A directory whose hashes, artifacts and verdicts were all made anew still has to agree with what a
step sends and with what a clock, a connection and a log can do. In doubt nothing is said:
docs/evidence.md lists what a forger can still do.
"""

from __future__ import annotations

from ..errors import LatencyError
from ..results import UPSTREAM
from . import closes, legs, recordings, requests, runs
from .evidence import Evidence

AGREES = "no recording contradicts itself, another, or run.json"
ASKED = "the requests are those that the step sends, and all of them"
# What our rules may stumble over in data that anybody may have written.
NONSENSE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)


def problems(evidence: Evidence, step: str) -> list[tuple[str, str | None]]:
    """(relation, what disproves it; None: nothing does) of a step's files."""
    checks = {
        AGREES: (runs.problem, recordings.problem, closes.problem),
        ASKED: (requests.problem, legs.problem),
    }
    names = [step, *(["capabilities"] if step == "server" else [])]
    names += [UPSTREAM + name for name in names]
    names = [name for name in names if evidence.has(name, step)]
    found = []
    for relation, rules in checks.items():
        if relation == ASKED and step == "report":
            continue  # it asks nothing
        problem = None
        for name in names:
            for rule in rules:
                try:
                    problem = problem or rule(evidence, name)
                except LatencyError as error:
                    problem = str(error)
                except NONSENSE as error:
                    problem = f"evidence/{name}: makes no sense: {error!r}"
        found.append((relation, problem))
    return found
