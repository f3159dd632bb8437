"""How many requests and tokens the selected steps will cost at least. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..look import LOOK_TOKENS
from ..plan import Messages, Plan
from ..wire.costs import estimate


def planned(
    plan: Plan, documents: Sequence[str], steps: Collection[str], rounds: int = 1
) -> tuple[int, int]:
    """(requests, tokens) of the steps when each is measured once, or in `rounds` where it has
    them: what is asked and all that may be answered, with the first look at the server. Repeats,
    where noise makes them necessary, come on top."""
    everything = plan.with_documents(documents)
    # Of several, the one to the letter does not count (see `rounds.in_rounds`).
    repeats = rounds + 1 if rounds > 1 else 1
    asked: dict[str, list[tuple[Messages, int]]] = {
        "sse": [(plan.short(), plan.max_tokens)],
        "ttft": [(plan.short(), plan.max_tokens)] * plan.ttft_runs,
        "prefill": [
            (plan.with_documents(documents[:docs]), plan.kb_max_tokens) for docs in plan.doc_counts
        ]
        * repeats,
        "cache": [
            (plan.clearing(), plan.clearing_max_tokens),
            *[(everything, plan.kb_max_tokens)] * 4,
        ]
        * repeats,
        "sentence": [(plan.sentence(), plan.sentence_max_tokens)] * rounds,
        "cancel": [
            *[(plan.cancel(), plan.cancel_max_tokens)] * 2,
            (everything, plan.kb_max_tokens),
            (plan.short(), plan.clearing_max_tokens),
        ],
    }
    wanted = {*steps, *(set(asked) - {"sse"} if "report" in steps else ())}
    requests = [(plan.clearing(), LOOK_TOKENS)]
    requests += [one for step, some in asked.items() if step in wanted for one in some]
    return len(requests), sum(estimate(messages) + tokens for messages, tokens in requests)
