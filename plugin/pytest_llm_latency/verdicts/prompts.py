"""Causes that two prompts and their counts give: no growth, a cache that misses. Pure."""

from __future__ import annotations

from ..evidence.timeline import Timeline
from .causes import ASK_BEHIND, SAME_TIME, clock_disagreement
from .verdict import Cause

CHARACTERS_A_TOKEN_AT_MOST = 16

Counts = tuple[int | None, int | None]


def stalled(processed: Counts, whole: Counts, added_characters: int) -> tuple[int, int, int] | None:
    """Where the counts of a short and a long prompt do not grow: the two, and how much more text
    they had to hold. None: they grow, or are not said.

    All tokens together must grow by what so much more text is at least, since two texts of the
    same length (two salts) differ by some tokens for nothing; those processed may have been in
    the cache.
    """
    for (few, many), characters in ((processed, 0), (whole, added_characters)):
        at_least = max(1, characters // CHARACTERS_A_TOKEN_AT_MOST)
        if few is not None and many is not None and many - few < at_least:
            return few, many, characters
    return None


# A cache of blocks of hundreds of tokens (vLLM on hybrid models: 784) hits in a prompt as long.
LONG_TOKENS = 2048
# Fewer than these are a block or two, of which no server reuses a part.
SHARED_TOKENS_AT_LEAST = 128
_CONTEXT_CHARACTERS = 12


def _number(value: int | None) -> str:
    return "an unknown number of" if value is None else str(value)


def cache_miss(cold: Timeline, second: Timeline) -> Cause:
    """A prompt that was known was processed again. Says where the two prompts part.

    Counts that tell of more work than there was time for are the first answer's, repeated; unless
    the server's clock is wrong in that one, too.
    """
    replayed = clock_disagreement(second)
    if replayed is not None and clock_disagreement(cold) is None:
        return replayed
    if second.prompt_n is None:
        return SAME_TIME
    if second.cold is False:
        return Cause(
            "cache-time",
            f"{second.cache_n} tokens were reused, and still the first text came no sooner: the "
            "time goes elsewhere (queue, other load on the server)",
        )
    shown = f"{second.prompt_n} tokens were processed again, {_number(second.cache_n)} reused"
    if cold.prompt != second.prompt:
        lost = partial_hit_lost(cold, second)
        if lost is not None:
            return lost
        return Cause(
            "prompts-differ",
            f"{shown}: the prompts part at {parting(cold.prompt, second.prompt)}. What changes "
            "belongs at the end of a prompt: a cache holds what is before it",
        )
    before, after = cold.prompt_total, second.prompt_total
    if before is not None and after is not None and before != after:
        return Cause(
            "prompt-changed-on-the-way",
            f"{shown}: the same prompt had {before} tokens the first time and {after} the second: "
            "something between you and the model rewrites it (a time, a session's number, the "
            f"history){ASK_BEHIND}",
        )
    short = "the prompt is shorter than the server's cache block, "
    return Cause(
        "cache-never-hits",
        f"{shown}, of the same prompt, character for character: prompt caching is off or "
        "cache_prompt is dropped on the way, another slot answered (try -np 1), "
        f"{short if before is None or before < LONG_TOKENS else ''}or this model cannot roll its "
        "cache back (sliding window: try --swa-full)",
    )


def partial_hit_lost(known: Timeline, again: Timeline) -> Cause | None:
    """A prompt that begins as a known one does was processed again from far before the place where
    the two part. None: it was not, or nobody counts."""
    if again.prompt_total is None or again.cache_n is None or not again.prompt:
        return None
    same = _same_characters(known.prompt, again.prompt)
    shared = min(round(again.prompt_total * same / len(again.prompt)), same)
    if shared < SHARED_TOKENS_AT_LEAST or again.cache_n >= shared / 2:
        return None
    parted = f"the prompts part at {parting(known.prompt, again.prompt)}, so that "
    return Cause(
        "partial-hit-lost",
        f"{'' if known.prompt == again.prompt else parted}about {shared} of {again.prompt_total} "
        f"tokens (by characters) are the same, and {again.cache_n} reused: this server reuses "
        "no part of a prompt, or less than it could (a sliding window: try --swa-full; blocks "
        "longer than the part; another slot answered: try -np 1)",
    )


def changed_prefix_hit(known: Timeline, changed: Timeline) -> Cause:
    """A prompt that differs from its first character on was served from the cache."""
    reused = (
        "its first text came as soon as that of the cached one"
        if not changed.cache_n
        else f"{changed.cache_n} tokens were reused"
    )
    return Cause(
        "changed-prefix-hit",
        f"{reused} although the prompts part at {parting(known.prompt, changed.prompt)}: does "
        "something answer from a cache of responses, drop the system prompt, or shift the cache "
        "(--cache-reuse)? Or is no prompt cached, and the first request of a round slow?",
    )


def parting(one: str, other: str) -> str:
    """Where two texts first differ, with a little of both."""
    same = _same_characters(one, other)
    start = max(0, same - _CONTEXT_CHARACTERS)
    shown = [repr(text[start : same + _CONTEXT_CHARACTERS]) for text in (one, other)]
    return f"character {same + 1} ({shown[0]} against {shown[1]})"


def _same_characters(one: str, other: str) -> int:
    """How many characters two texts share from the first on."""
    pairs = enumerate(zip(one, other))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def prompt_not_growing(few: int, many: int, added_characters: int) -> Cause:
    """More text, and no more tokens, or far too few."""
    more = f" ({added_characters:,} more characters)" if added_characters > 0 else ""
    return Cause(
        "prompt-not-growing",
        f"the longer prompt had {many} tokens{more} against {few}: it was cut off on its way, or "
        "the cache answered although cache_prompt is false",
    )
