"""Checks of the sentence step's files where they were made by hand. Pure."""

from __future__ import annotations

import re

from ..by_hand import Given, Problem, in_seconds

CHARACTERS_OF_SEVERAL_PIECES = 24


def ends_at_first(given: Given) -> Problem:
    if given.sentence is None:
        return None
    text, cut = given.sentence.text, given.sentence.first_sentence.strip()
    # A space alone counts as white space, too: the lab's own words leave that open.
    ends = [re.search(pattern, text) for pattern in (r"[.!?](?=\s)", r"[.!?](?= )")]
    expected = {(text[: end.end()] if end else text).strip() for end in ends}
    if cut in expected:
        return None
    right = min(expected, key=len)
    why = "the first place where one of . ! ? is followed by white space"
    if cut == text.strip():
        why += "; this is the whole text"
    elif cut.startswith(right):
        why += "; this goes on behind it"
    elif right.startswith(cut):
        why += "; this ends before it (a dot inside a number or a word is no end)"
    return (
        "wrong-sentence",
        f"sentence.json: first_sentence: found ...{cut[-30:]!r}, expected ...{right[-30:]!r}, "
        f"because it ends at {why}",
    )


def sentence_moment(given: Given) -> Problem:
    one = given.sentence
    if one is None:
        return None
    rest = one.text.strip().removeprefix(one.first_sentence.strip()).strip()
    if len(rest) > CHARACTERS_OF_SEVERAL_PIECES and one.first_sentence_ms == one.total_ms:
        return (
            "wrong-moment",
            f"sentence.json: first_sentence_ms: found {one.first_sentence_ms:.6g}, which is "
            f"total_ms; expected less, because {len(rest)} characters come behind the sentence",
        )
    long = len(one.first_sentence) > CHARACTERS_OF_SEVERAL_PIECES
    if long and one.first_sentence_ms == one.ttft_ms < one.total_ms:
        return (
            "wrong-moment",
            f"sentence.json: first_sentence_ms: found {one.first_sentence_ms:.6g}, which is "
            f"ttft_ms; expected more, because a sentence of {len(one.first_sentence)} characters "
            "is many pieces: it is the moment of the piece with the white space behind it",
        )
    return None


def sentence_unit(given: Given) -> Problem:
    if given.sentence is None or given.ttft is None:
        return None
    because = "ttft.json's question is about as long"
    return in_seconds(
        "sentence.json: ttft_ms", given.sentence.ttft_ms, given.ttft.ttft_p50, because
    )
