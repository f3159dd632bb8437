"""The language of what people read: fixed phrases by gettext, whole sentences by their templates.

Sentences of verdicts are kept in English, their numbers filled in; a catalogue has their templates,
`{name}` standing for what is filled in. It knows no sentence itself and imports nothing of the
package; what a catalogue does not know stays English.
"""

from __future__ import annotations

import functools
import gettext
import io
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOMAIN = "pytest_llm_latency"
LOCALES = Path(__file__).with_name("locale")
# The directories of the catalogues; the sentences are English as they are.
CATALOGUES: Mapping[str, str | None] = {"en": None, "zh": "zh_CN"}
# Simplified Chinese; to readers of traditional characters English is the safer guess.
_OURS = {"en": re.compile("en([_.@].*)?"), "zh": re.compile("zh([_-](CN|SG|Hans.*))?([.@].*)?")}
_NEUTRAL = re.compile(r"|(C|POSIX)([.@].*)?")
_PLACEHOLDER = re.compile(r"\{([a-z0-9_]+)\}")
# What may stand for a placeholder, by the end of its name; for all others any text.
_KINDS = {
    "number": re.compile(
        r"[-+]?[0-9][0-9.,]*(, [0-9][0-9.,]*)*(e[-+]?[0-9]+)?%?|not reported|None|inf"
    ),
    "time": re.compile(r"[-+]?[0-9][0-9.,]*(e[-+]?[0-9]+)? ms|none"),
    "word": re.compile(r"\S+"),
    "quoted": re.compile(r"b?'.*'|b?\".*\"|\w*\(.*\)|\[.*\]|[-\w.]+", re.DOTALL),
    "name": re.compile(r".*", re.DOTALL),
}
# These may be a word of ours ("none"); what is a word, quoted or a name is nobody's sentence.
_COUNTED = ("number", "time")
# Sentences are put together of sentences; deeper than this no honest one is.
_DEPTH_AT_MOST = 6


def default_code(environment: Mapping[str, str]) -> str:
    """The language that the locale's variables ask for; "en" where they leave a doubt.

    As gettext reads them: LANGUAGE is a list that goes before, but not where there is no locale.
    """
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    locale = next(filter(None, map(environment.get, names)), "")
    if _NEUTRAL.fullmatch(locale):
        return "en"
    for wanted in (environment.get("LANGUAGE") or locale).split(":"):
        for code, spelling in _OURS.items():
            if spelling.fullmatch(wanted):
                return code
    return "en"


def _kind(name: str) -> str:
    """The kind of a placeholder: what its name ends with, but for a digit; "" for any text."""
    _, dash, kind = name.rstrip("0123456789").rpartition("_")
    return kind if dash else ""


@dataclass(frozen=True)
class Template:
    """A sentence with gaps: the `literals` around the gaps `names`, one more than these."""

    literals: Sequence[str]
    names: Sequence[str]
    translation: str

    @property
    def weight(self) -> int:
        """How much of it is words of its own."""
        return sum(map(len, self.literals))

    def match(self, text: str) -> Mapping[str, str] | None:
        """What stands in the gaps if the whole text is this sentence: each gap ends where the next
        literal first begins. Linear in the length of the text, whatever stands in it."""
        first, *between, last = self.literals
        if not text.startswith(first) or not text.endswith(last):
            return None
        found: dict[str, str] = {}
        start = len(first)
        for name, literal in zip(self.names, [*between, last]):
            is_last = len(found) == len(between)
            end = len(text) - len(last) if is_last else text.find(literal, start)
            if end < start:
                return None
            found[name] = text[start:end]
            kind = _KINDS.get(_kind(name))
            if kind is not None and kind.fullmatch(found[name]) is None:
                return None
            start = end + len(literal)
        return found


def template(message: str, translation: str) -> Template:
    """Compile a message of a catalogue."""
    parts = _PLACEHOLDER.split(message)
    return Template(parts[::2], parts[1::2], translation)


@dataclass(frozen=True)
class Language:
    """`code` is the option's, `tag` that of `<html lang>`; `translations` is what gettext knows,
    for whoever takes such an object (jinja2's `install_gettext_translations`)."""

    code: str
    tag: str
    translations: gettext.NullTranslations
    templates: Sequence[Template] = ()

    def _(self, text: str) -> str:
        """A fixed phrase."""
        return self.translations.gettext(text) if text else ""

    def say(self, text: str) -> str:
        """A sentence that we have made, whatever is filled in; any other text as it is."""
        return self._say(text, _DEPTH_AT_MOST)

    def _say(self, text: str, depth: int) -> str:
        known = self._(text)
        if known != text or not depth:
            return known
        for one in self.templates:
            found = one.match(text)
            if found is not None:
                parts = {name: self._part(name, part, depth) for name, part in found.items()}
                return _filled(one.translation, parts)
        return text

    def _part(self, name: str, text: str, depth: int) -> str:
        """What stands in a gap: of a sentence it may be one, of a number a word ("none")."""
        kind = _kind(name)
        if kind not in _KINDS:
            return self._say(text, depth - 1)
        return self._(text) if kind in _COUNTED else text


def _filled(translation: str, parts: Mapping[str, str]) -> str:
    """One pass, and no format(): what a server said is text, whatever it looks like."""
    return _PLACEHOLDER.sub(lambda gap: parts[gap.group(1)], translation)


@functools.cache
def language(code: str) -> Language:
    """The language of that code, its catalogue loaded when it is first asked for. Raises KeyError,
    OSError."""
    directory = CATALOGUES[code]
    if directory is None:
        return Language(code, code, gettext.NullTranslations())
    path = LOCALES / directory / "LC_MESSAGES" / f"{DOMAIN}.mo"
    compiled = path.read_bytes()
    translations = gettext.GNUTranslations(io.BytesIO(compiled))
    messages = messages_of(compiled)
    templates = [template(*pair) for pair in messages if _PLACEHOLDER.search(pair[0])]
    # The one with the most words of its own goes first: it says the most.
    templates.sort(key=lambda one: -one.weight)
    return Language(code, directory.replace("_", "-"), translations, tuple(templates))


def messages_of(compiled: bytes) -> Iterator[tuple[str, str]]:
    """(message, translation) of a compiled catalogue: gettext's classes list nothing."""
    count, *tables = struct.unpack_from("<3I", compiled, 8)
    for number in range(count):
        places = [struct.unpack_from("<2I", compiled, table + 8 * number) for table in tables]
        message, translation = (compiled[at : at + size].decode("utf-8") for size, at in places)
        yield message, translation
