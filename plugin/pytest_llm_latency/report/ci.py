"""What a CI job shows: a summary in Markdown, annotations, a table for pytest-html.

The words in them may be those of a model or a server. They are put into HTML, escaped, where
neither Markdown nor the site makes anything of them.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..compare.numbers import Number
from ..evidence.run_index import FAILING, Outcome
from ..verdicts.verdict import Verdict
from .inert import inert

Say = Callable[[str], str]
MARKS: Mapping[Outcome, str] = {
    "broken": "❌",
    "inconclusive": "❔",
    "not measurable": "⏭",
    "not judged": "⏭",
    "holds": "✅",
}
# A summary that is too long is not shown at all.
WORDS_AT_MOST = 2_000


def markdown(
    title: str,
    facts: Sequence[str],
    verdicts: Sequence[Verdict],
    errors: Mapping[str, str],
    notes: Sequence[tuple[str, str]],
    say: Say = str,
) -> str:
    """The summary: what is wrong with its causes, then everything in a table. `errors` are the
    words of steps that failed in another way, by step."""
    found = [verdict.outcome for verdict in verdicts]
    tally = [f"{mark} {found.count(o)} {say(o)}" for o, mark in MARKS.items() if o in found]
    tally += [f"💥 {len(errors)} {say('failed')}"] if errors else []
    lines = [f"### {_text(title)}", "", " · ".join(tally), ""]
    # Outside of a table, what stands in a line is Markdown.
    lines += ["<table>", *(_row(_code(fact, say)) for fact in facts), "</table>"]
    bad = [verdict for verdict in verdicts if verdict.outcome in FAILING]
    if bad or errors:
        lines += ["", "<table>"]
        for step, words in errors.items():
            lines.append(_row(MARKS["broken"], _text(step), _code(words)))
        for one in bad:
            words = _code(one.relation, say) + "<br>" + _code(one.numbers, say)
            if one.cause is not None:
                cause = one.cause
                words += f"<br><b>{_text(cause.code)}</b> {_code(cause.sentence, say)}"
            lines.append(_row(MARKS[one.outcome], _text(one.step), words))
        lines.append("</table>")
    lines += ["", f"<details><summary>{_text(say('All verdicts'))}</summary><table>"]
    for one in verdicts:
        words = _code(one.numbers, say)
        if one.cause is not None and one.outcome in ("not measurable", "not judged"):
            words += f" {_code(one.cause.sentence, say)}"
        cells = _text(one.step), _code(one.relation, say), words
        lines.append(_row(MARKS[one.outcome], *cells))
    lines += ["</table></details>", ""]
    if notes:
        rows = (_row(_text(step), _code(note, say)) for step, note in notes)
        lines += ["<table>", *rows, "</table>"]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _text(text: str) -> str:
    return html.escape(inert(text))


def _code(text: str, say: Say = str) -> str:
    """As code, in which a site links and mentions nothing."""
    return f"<code>{_text(say(text)[:WORDS_AT_MOST])}</code>"


def append_summary(path: Path, text: str) -> str | None:
    """Add to the file that a job's summary is made of; give what went wrong."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"the job's summary: cannot write {path}: {error.strerror}"
    return None


def commands(verdicts: Sequence[Verdict], errors: Mapping[str, str], say: Say = str) -> list[str]:
    """GitHub's workflow commands for what is wrong: a line each."""
    lines = [_command("error", f"llm-latency {step}", words) for step, words in errors.items()]
    kinds = {"broken": "error", "inconclusive": "warning"}
    for one in verdicts:
        if one.outcome in kinds:
            words = say(one.numbers)
            if one.cause is not None:
                words += f"; {one.cause.code}: {say(one.cause.sentence)}"
            title = f"llm-latency {one.step}: {say(one.relation)}"
            lines.append(_command(kinds[one.outcome], title, words))
    return lines


def _command(kind: str, title: str, words: str) -> str:
    shown = inert(title).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={shown}::{inert(words[:WORDS_AT_MOST]).replace('%', '%25')}"


def html_table(verdicts: Sequence[Verdict], numbers: Mapping[str, Number], say: Say = str) -> str:
    """A step's verdicts and numbers, for a report that shows a row a test."""
    rows = [
        _row(_text(say(one.outcome)), _code(one.relation, say), _code(one.numbers, say))
        for one in verdicts
    ]
    rows += [_row("", _code(name), _text(f"{value}")) for name, value in numbers.items()]
    return "<table>" + "".join(rows) + "</table>"
