"""The catalogues have all that the package says, and are what is compiled from them.

Where one of these fails: `python plugin/tests/catalogue.py`, translate what is empty in the .po, and
run it again.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from pathlib import Path
from typing import Any

import catalogue
import pytest
from babel.messages.catalog import Message

from pytest_llm_latency.language import CATALOGUES, language, messages_of, template

DIRECTORIES = [directory for directory in CATALOGUES.values() if directory is not None]
GAP = re.compile(r"\{[^{}]*\}|%\([a-z_]+\)[sd]|%[sd]")
MESSAGES = catalogue.messages()


def entries(directory: str) -> list[Message]:
    return [message for message in catalogue.catalogue(directory) if message.id]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_every_sentence_of_the_source_is_translated(directory: str) -> None:
    translated = {message.id for message in entries(directory) if message.string}
    missing = {text: places for text, places in MESSAGES.items() if text not in translated}
    assert not missing, "no translation: python plugin/tests/catalogue.py"


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_nothing_is_translated_that_is_not_said(directory: str) -> None:
    assert {message.id for message in entries(directory)} <= set(MESSAGES)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_every_entry_is_whole(directory: str) -> None:
    for message in entries(directory):
        assert message.string, message.id
        assert not message.fuzzy, message.id
        assert sorted(GAP.findall(message.id)) == sorted(GAP.findall(message.string)), message.id
        assert message.id[:1].isspace() == message.string[:1].isspace() or message.id[:2] == " ("


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_what_is_compiled_is_what_is_written(directory: str) -> None:
    compiled = catalogue.po_path(directory).with_suffix(".mo").read_bytes()
    fresh = catalogue.compiled(catalogue.catalogue(directory))
    # The header names the version of Babel.
    assert [pair for pair in messages_of(compiled) if pair[0]] == [
        pair for pair in messages_of(fresh) if pair[0]
    ]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_one_that_could_be_any_text_only_lets_its_parts_be_translated(directory: str) -> None:
    """Where gaps for any text stand between next to nothing, the translation changes nothing of
    what is around them: else words of a server could be taken for ours."""
    for message in entries(directory):
        one = template(str(message.id), str(message.string))
        free = [
            name for name in one.names if "_" not in name or not name.endswith(("number", "time"))
        ]
        if free and one.weight < 5:
            assert message.string == message.id


def test_a_table_in_chinese_has_no_character_of_doubtful_width() -> None:
    """Some terminals give these two columns, others one."""
    for message, translation in language("zh").translations._catalog.items():  # type: ignore[attr-defined]
        widths = {unicodedata.east_asian_width(character) for character in translation}
        assert "A" not in widths or not message, translation


def test_what_is_said_to_be_no_sentence_still_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    excepted = catalogue.NO_SENTENCES
    monkeypatch.setattr(catalogue, "NO_SENTENCES", frozenset())
    assert excepted - set(catalogue.messages()) == set()


def found(source: str) -> set[str]:
    return set(catalogue._sentences(ast.parse(source)))


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ('x = f"closed at {ms:.0f} ms"', {"closed at {ms_number} ms"}),
        ('x = f"idle {milliseconds(idle_ms)} after the close"', {"idle {idle_time} after the close"}),
        ('x = f"{len(rows)} rows in {count(n)} files"', {"{rows_number} rows in {n_number} files"}),
        ('x = f"the key {key!r} is {kind}"', {"the key {key_quoted} is {kind}"}),
        ("""x = f"it {'ran on' if late else 'stood still'} here" """, {"it ran on here", "it stood still here"}),
        ("""x = f"all is well{hint if late else ''}" """, {"all is well{hint}", "all is well"}),
        ('words += f"; not: {gone} at all"', {"{words}; not: {gone} at all"}),
        ('words += f"; not: {gone}" if gone else ""', {"{words}; not: {gone}"}),
        ('x = ", ".join(map(count, known)) + " tokens"', {"{list_number} tokens"}),
        ('x = f"{a}{b} of them"', {"{a} of them"}),
        ('x = f"{a} and {a} of them"', {"{a} and {a2} of them"}),
        ('raise UsageError("a bad value")', set()),
        ('def f() -> "some kind":\n    """It does it."""\n    return "one"', set()),
    ],
)  # fmt: skip
def test_sentences_are_found_in_the_syntax_tree(source: str, messages: set[str]) -> None:
    assert found(source) == messages


def test_fixed_phrases_are_found_in_modules_and_pages() -> None:
    page = """<h1>{{ _("How it ran") }}</h1> {{ _('it\\'s "here"') }} {{ other_("not this") }}"""
    assert catalogue.phrases_of(page) == ["How it ran", 'it\'s "here"']
    module = ast.parse('a = language._("One word"); b = _("Another"); c = say("no phrase")')
    assert set(catalogue._marked(module)) == {"One word", "Another"}


def test_a_new_sentence_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test above that looks for them would fail."""
    (tmp_path / "new.py").write_text('WORDS = f"nobody has said {this} before"\n', encoding="utf-8")
    (tmp_path / "page.html").write_text('{{ _("Nor this") }}\n', encoding="utf-8")
    monkeypatch.setattr(catalogue, "PACKAGE", tmp_path)
    known: set[Any] = {message.id for message in entries(DIRECTORIES[0])}
    assert set(catalogue.messages()) - known == {"nobody has said {this} before", "Nor this"}
