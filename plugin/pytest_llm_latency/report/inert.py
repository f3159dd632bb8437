"""Text of models and servers, made unable to do anything where it is shown."""

from __future__ import annotations

import unicodedata


def inert(text: str) -> str:
    """One line without control, format or bidirectional characters, nor a command of GitHub's
    workflows: nothing for a terminal or a CI system to obey, nothing that shows other than it
    stands there."""
    line = "".join(map(_inert, text.replace("\n", " "))).replace("##[", "## [")
    return line.replace("::", ": :", 1) if line.lstrip().startswith("::") else line


def inert_lines(text: str) -> str:
    """The same line for line; a line ends at LF alone."""
    return "\n".join(map(inert, text.split("\n")))


def inert_block(text: str) -> str:
    """The same, each line but the first behind a bar: what begins a line there may be a
    server's."""
    first, *more = text.split("\n")
    return "\n".join([inert(first), *(f"| {inert(line)}" for line in more)])


_BREAKS = frozenset(("Zl", "Zp"))  # lines and paragraphs end there


def _inert(character: str) -> str:
    if unicodedata.category(character)[0] == "C" or unicodedata.category(character) in _BREAKS:
        return "\N{REPLACEMENT CHARACTER}"
    return character
