"""Text of models and servers, made unable to do anything where it is shown."""

from __future__ import annotations

import unicodedata


def inert(text: str) -> str:
    """One line without control, format or bidirectional characters: nothing for a terminal to
    obey, nothing that shows other than it stands there."""
    return "".join(map(_inert, text.replace("\n", " ")))


def inert_lines(text: str) -> str:
    """The same line for line; a line ends at LF alone."""
    return "\n".join(map(inert, text.split("\n")))


def _inert(character: str) -> str:
    if unicodedata.category(character)[0] == "C":
        return "\N{REPLACEMENT CHARACTER}"
    return character
