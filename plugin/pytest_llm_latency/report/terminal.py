"""The terminal: a line that moves while a step measures, and the table at the end."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..relations import Verdict

_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"
_MARKS = {
    "holds": ("holds", {"green": True}),
    "broken": ("BROKEN", {"red": True}),
    "inconclusive": ("INCONCLUSIVE", {"yellow": True}),
    "not measurable": ("not measurable", {"yellow": True}),
}


def inert(text: str) -> str:
    """Text of a model or a server that cannot do anything to a terminal: one line, and no
    control, format or bidirectional characters."""
    return "".join(
        character if unicodedata.category(character)[0] != "C" else "\N{REPLACEMENT CHARACTER}"
        for character in text.replace("\n", " ")
    )


class ProgressLine:
    """Shows what is being done behind the test's name; nothing where there is no terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self.active = False
        if self._plugins.hasplugin("terminalreporter"):
            self._writer = config.get_terminal_writer()
            self.active = self._writer._file.isatty() and config.getoption("verbose") >= 0

    def show(self, text: str) -> None:
        """Replace the line's end by `text`; empty: clear it."""
        if not self.active:
            return
        room = max(0, self._writer.fullwidth - self._writer.width_of_current_line - 2)
        shown = f" {inert(text)}"[:room] if text else ""
        with self.uncaptured():
            self._writer._file.write(f"{_SAVE}{_ERASE}{shown}{_RESTORE}")
            self._writer.flush()

    def uncaptured(self) -> contextlib.AbstractContextManager[None]:
        """Lets the block write to the terminal; capturing is as it was afterwards."""
        capture = self._plugins.getplugin("capturemanager")
        if capture is None:
            return contextlib.nullcontext()
        manager: contextlib.AbstractContextManager[None] = capture.global_and_fixture_disabled()
        return manager


def write_summary(
    reporter: pytest.TerminalReporter,
    facts: Sequence[str],
    basis: str,
    verdicts: Sequence[Verdict],
    notes: Sequence[tuple[str, str]],
    directory: Path | None,
) -> None:
    """The table: step, relation, numbers, verdict; then notes, and where the files are."""
    reporter.write_sep("=", "LLM latency")
    for fact in facts:
        reporter.write_line(inert(fact))
    widths = [
        max((len(inert(cell)) for cell in column), default=0)
        for column in zip(*((v.step, v.relation) for v in verdicts))
    ]
    for verdict in verdicts:
        word, colour = _MARKS[verdict.outcome]
        step, relation = inert(verdict.step), inert(verdict.relation)
        reporter.write(f"{step:<{widths[0]}}  {relation:<{widths[1]}}  ")
        reporter.write(f"{word:<6}", **colour)
        if basis != "live":
            reporter.write(f"  on {basis}")
        why = verdict.cause if verdict.outcome == "not measurable" else None
        reporter.write_line(f"  {inert(verdict.numbers if why is None else why.sentence)}")
    for step, note in notes:
        reporter.write_line(f"note: {inert(step)}: {inert(note)}")
    if directory is not None:
        reporter.write_line(f"files: {inert(str(directory))}")
