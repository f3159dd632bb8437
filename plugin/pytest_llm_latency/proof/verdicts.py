"""The rows of a grading that say what the files of a run disprove."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import LatencyError
from ..look import CAPABILITIES
from ..plan import Plan
from ..proof import legs, recordings, requests, runs
from ..steps.legs import UPSTREAM
from ..verdicts.verdict import Verdict, graded
from .closes import problem
from .evidence import Evidence

AGREES = "no recording contradicts itself, another, or run.json"
ASKED = "the requests are those that the step sends, and all of them"
# What our rules may stumble over in data that anybody may have written.
NONSENSE = (
    *(TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError),
    RecursionError,
)
Rule = Callable[[Evidence, str], str | None]
RULES: Mapping[str, Sequence[Rule]] = {
    AGREES: (runs.problem, recordings.problem, problem),
    ASKED: (requests.problem, legs.problem),
}


def verdicts(evidence: Evidence, step: str) -> list[Verdict]:
    """Of a step that a run has measured, and of the same at the server behind."""
    names = [step, *([CAPABILITIES] if step == "server" else [])]
    names += [UPSTREAM + name for name in names]
    names = [name for name in names if evidence.has(name, step)]
    found = []
    for relation, rules in RULES.items():
        if relation == ASKED and step == "report":
            continue  # it asks nothing
        words = (_words(rule, evidence, name) for name in names for rule in rules)
        verdict = graded(step, relation, next(filter(None, words), None))
        if relation == ASKED and verdict.outcome == "holds":
            verdict = replace(verdict, numbers=_by_which_plan(evidence.run(step).plan))
        found.append(verdict)
    return found


def _words(rule: Rule, evidence: Evidence, name: str) -> str | None:
    try:
        return rule(evidence, name)
    except LatencyError as error:
        return str(error)
    except NONSENSE as error:
        return f"evidence/{name}: makes no sense: {error!r}"


def _by_which_plan(plan: Plan | None) -> str:
    """A plan that is not the lab's is one's own to choose, and a reader must know it."""
    if plan is None:
        return "they agree with each other; run.json has no plan"
    lab, roomy = vars(Plan()), vars(Plan().with_room_for_reasoning())
    own = [name for name, value in vars(plan).items() if value not in (lab[name], roomy[name])]
    return f"they agree, by a plan of one's own: {', '.join(own)}" if own else "they agree"
