"""Where the first sentence of a text ends, and by which character that is known. Pure."""

from __future__ import annotations

import re
from typing import Literal

Rule = Literal["plain", "careful"]
RULES = ("plain", "careful")

_PLAIN_END = re.compile(r"[.!?](?=\s)")
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]}\u300d\u300f\uff09\u3011\u300b"
_CAREFUL_END = re.compile(
    f"([.!?\u2026]+[{_CLOSERS}]*)(?=\\s)|([\u3002\uff01\uff1f]+[{_CLOSERS}]*)(?=.)", re.DOTALL
)
_LAST_WORD = re.compile(r"[\w.]*\w\Z")
# A point behind these never ends a sentence; behind those it does before a capital.
_TITLES = frozenset(
    ("dr", "mr", "mrs", "ms", "mx", "prof", "st", "jr", "sr", "vs", "e.g", "i.e", "approx", "fig")
)
_SHORT_FORMS = frozenset(["a.m", "p.m", "etc", "inc", "ltd", "co", "u.s"])


def first_end(text: str, rule: Rule) -> tuple[int, int] | None:
    """(length of the first sentence, index of the character by which its end is known); None
    where the text has no such place.

    "plain" is the lab's: one of `.!?` before white space. "careful" sees through titles, short
    forms, initials and "No. 5", takes closing quotes and brackets along, and knows the full-width
    marks of Chinese and Japanese.
    """
    if rule == "plain":
        match = _PLAIN_END.search(text)
        return (match.end(), match.end()) if match is not None else None
    for match in _CAREFUL_END.finditer(text):
        known = _known(text, match)
        if known is not None:
            return match.end(), known
    return None


def all_ends(text: str, rule: Rule) -> list[tuple[int, int, int]]:
    """(start, end, index of the character by which the end is known) of every sentence; the last
    may have no end but the text's."""
    found = []
    start = 0
    while text[start:].strip():
        end = first_end(text[start:], rule)
        length, known = end if end is not None else (len(text) - start, len(text) - start)
        found.append((start, start + length, start + known))
        start += length
    return found or [(0, len(text), len(text))]


def _known(text: str, match: re.Match[str]) -> int | None:
    """The index of the character by which this is known to be an end; None: it is none."""
    if match.group() != ".":
        return match.end()
    before = _LAST_WORD.search(text, 0, match.start())
    word = before.group() if before is not None else ""
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    if word.lower() in _TITLES or is_initial:
        return None
    if word.lower() != "no" and word.lower() not in _SHORT_FORMS:
        return match.end()
    following = re.compile(r"\S").search(text, match.end())
    if following is None:
        return None
    first = following.group()
    goes_on = first.isdigit() if word.lower() == "no" else first.islower() or first.isdigit()
    return None if goes_on else following.start()
