"""The terminal: a line that moves while a step measures, and the table at the end."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Mapping, Sequence

import pytest

from ..language import Language
from ..verdicts.verdict import Verdict
from .inert import inert

_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"
_MARKS = {
    "holds": ("holds", {"green": True}),
    "broken": ("BROKEN", {"red": True}),
    "inconclusive": ("INCONCLUSIVE", {"yellow": True}),
    "not measurable": ("not measurable", {"yellow": True}),
    "not judged": ("not judged", {"yellow": True}),
}
_BASES = {"evidence": "on evidence", "contract": "on contract"}


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(character) else 1 + (_width_of(character) in "WF")
        for character in text
    )


def _width_of(character: str) -> str:
    return unicodedata.east_asian_width(character)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def _clipped(text: str, width: int) -> str:
    while columns(text) > width:
        text = text[:-1]
    return text


class ProgressLine:
    """Shows what is being done behind the test's name; nothing where there is no terminal."""

    def __init__(self, config: pytest.Config, language: Language) -> None:
        self._language = language
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
        shown = _clipped(f" {inert(self._language.say(text))}", room) if text else ""
        # A terminal that has not the letters goes without.
        with self.uncaptured(), contextlib.suppress(UnicodeEncodeError):
            self._writer._file.write(f"{_SAVE}{_ERASE}{shown}{_RESTORE}")
            self._writer.flush()

    def uncaptured(self) -> contextlib.AbstractContextManager[None]:
        """Lets the block write to the terminal; capturing is as it was afterwards."""
        capture = self._plugins.getplugin("capturemanager")
        if capture is None:
            return contextlib.nullcontext()
        manager: contextlib.AbstractContextManager[None] = capture.global_and_fixture_disabled()
        return manager


class Lines:
    """Takes what a terminal reporter would write, as text."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def write_sep(self, sep: str, title: str) -> None:
        self._parts.append(f" {title} ".center(80, sep) + "\n")

    def write(self, text: str, **_: bool) -> None:
        self._parts.append(text)

    def write_line(self, text: str) -> None:
        self._parts.append(text + "\n")

    def text(self) -> str:
        """All of it."""
        return "".join(self._parts).rstrip("\n")


def write_summary(
    reporter: pytest.TerminalReporter | Lines,
    language: Language,
    title: str,
    facts: Sequence[str],
    basis: str,
    verdicts: Sequence[Verdict],
    notes: Sequence[tuple[str, str]],
    places: Sequence[tuple[str, str]],
) -> None:
    """The table: step, relation, numbers, verdict; then notes, and (what, where) of `places`."""
    reporter.write_sep("=", title)
    say = language.say
    for fact in facts:
        reporter.write_line(inert(say(fact)))
    cells = [(inert(verdict.step), inert(say(verdict.relation))) for verdict in verdicts]
    widths = [max(map(columns, column)) for column in zip(*cells)]
    for verdict, (step, relation) in zip(verdicts, cells):
        word, colour = _MARKS[verdict.outcome]
        reporter.write(f"{_padded(step, widths[0])}  {_padded(relation, widths[1])}  ")
        reporter.write(_padded(language._(word), 6), **colour)
        if basis in _BASES:
            reporter.write(f"  {language._(_BASES[basis])}")
        words = say(verdict.numbers)
        if verdict.cause is not None and verdict.outcome == "not measurable":
            words = say(verdict.cause.sentence)
        elif verdict.cause is not None and verdict.outcome == "not judged":
            words += f"; {say(verdict.cause.sentence)}"
        reporter.write_line(f"  {inert(words)}")
    for step, note in notes:
        reporter.write_line(inert(f"{language._('note')}: {step}: {say(note)}"))
    for what, where in places:
        reporter.write_line(inert(f"{language._(what)}: {say(where)}"))


# (what is compared, its numerator, its denominator): in one target each, or, without a
# denominator, with the first target.
_COMPARED = (
    ("ttft", "ttft_p50_ms", None),
    ("ttft with all documents", "ttft_12docs_ms", None),
    ("ttft of a cached prompt", "cache_ttft_ms", None),
    ("first sentence", "first_sentence_ms", None),
    ("whole answer", "total_p50_ms", None),
    ("slot idle after the close", "cancel_idle_ms", None),
    ("ttft / whole answer", "ttft_p50_ms", "total_p50_ms"),
    ("cached / cold ttft", "cache_ttft_ms", "cold_ttft_ms"),
    ("first sentence / its answer", "first_sentence_ms", "sentence_total_ms"),
)


def write_comparison(
    reporter: pytest.TerminalReporter | Lines,
    language: Language,
    figures: Mapping[str, Mapping[str, float]],
) -> None:
    """Several targets side by side, as ratios inside this run; nothing for fewer than two, or
    where they have nothing in common."""
    if len(figures) < 2 or not all(figures.values()):
        return
    first = next(iter(figures.values()))
    reporter.write_sep("=", language.say(f"{len(figures)} targets"))
    reporter.write_line(" " * 29 + "".join(f"{name:>10}" for name in figures))
    for title, numerator, denominator in _COMPARED:
        cells = []
        for found in figures.values():
            below = first.get(numerator) if denominator is None else found.get(denominator)
            above = found.get(numerator)
            cells.append("-" if above is None or not below else f"{above / below:.3g}")
        if set(cells) != {"-"}:
            shown = _padded(language._(title), 29)
            reporter.write_line(shown + "".join(f"{cell:>10}" for cell in cells))
    below_it = "the upper rows over the first target, the lower ones over the target's own"
    reporter.write_line(language._(below_it))
