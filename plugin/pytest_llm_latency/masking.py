"""Stars in the place of secrets, in whatever form they come back. Pure.

A server may repeat the key that it refuses: as it is, escaped as JSON, HTML or a URL's part, in
base64, or in several pieces. What is starred keeps its length in bytes, so that offsets stay true
and JSON stays JSON. Which values are secrets says `secrecy.py`.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.entities import html5
from itertools import accumulate, pairwise
from typing import Any

from .secrecy import STARS, Hidden, without_credentials

# A shorter value is found in ordinary text, too.
SECRET_BYTES_AT_LEAST = 8
# Escapes within escapes: JSON in JSON in a URL.
_LEVELS_AT_MOST = 4
_ENTITIES = {
    name[:-1].encode(): character.encode()
    for name, character in html5.items()
    if name.endswith(";") and len(character) == 1 and character.isascii()
}
# Where an answer comes in pieces: the strings that a reader puts together again.
_PIECE = re.compile(
    rb'"(content|text|thinking|value|reasoning(?:_content|_text)?|arguments|refusal|message)"'
    rb'[ \t\r\n]*:[ \t\r\n]*"([^"\\]*(?:\\.[^"\\]*)*)"',
    re.DOTALL,
)
_HEX = rb"[0-9A-Fa-f]"
_JSON_ESCAPE = re.compile(rb"\\(?:u[0-9A-Fa-f]{1,4}|[^\r\n])")
Span = tuple[int, int]


class _Needle(bytes):
    """What is looked for, which no repr shows: --showlocals prints them."""

    def __repr__(self) -> str:
        return "<secret>"


class Mask:
    """Stars these secrets; those that are too short it does not look for. `places` counts the
    places that were starred so far in what a server sent."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = list(map(Hidden, secrets))
        raw = {secret.encode("utf-8", "surrogatepass") for secret in self._secrets}
        raw = {one for one in raw if len(one) >= SECRET_BYTES_AT_LEAST}
        self._escape = _escapes_of(b"".join(raw))
        forms = {form for one in raw for form in (one, *_as_base64(one))}
        # An escape in a secret itself is undone in the text, too.
        undone = {self._undone(form)[-1] for form in forms}
        forms |= {form for form in undone if len(form) >= SECRET_BYTES_AT_LEAST}
        self._needles = sorted(map(_Needle, forms), key=len, reverse=True)
        self.places = 0

    def also(self, secrets: Iterable[str]) -> Mask:
        """One that stars further ones, too."""
        return Mask([*self._secrets, *map(Hidden, secrets)])

    def data(self, data: bytes) -> bytes:
        """The bytes, as many as before."""
        (masked,), _ = self.parts([data])
        return masked

    def text(self, text: str) -> str:
        """The same for a text."""
        data = text.encode("utf-8", "surrogatepass")
        return _starred(data, self._spans(data)).decode("utf-8", "surrogatepass")

    def words(self, words: str) -> str:
        """The same for words that are shown: without the credentials of others, too."""
        return without_credentials(self.text(words))

    def value(self, value: Any) -> Any:
        """The same for a JSON value, what is hidden in it left out."""
        if isinstance(value, Hidden):
            return STARS
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(name): self.value(inner) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        return value

    def parts(self, parts: Sequence[bytes]) -> tuple[list[bytes], int]:
        """(the same for a body in parts, the number of places), whatever a secret is split over:
        parts of the body, or the pieces of text in it."""
        body = b"".join(parts)
        if not self._needles or not body:
            return list(parts), 0
        spans = _merged([*self._spans(body), *self._spans_in_pieces(body)])
        if not spans:
            return list(parts), 0
        self.places += len(spans)
        body = _starred(body, spans)
        ends = list(accumulate(map(len, parts)))
        return [body[end - len(part) : end] for end, part in zip(ends, parts)], len(spans)

    def _spans(self, data: bytes) -> list[Span]:
        """Where secrets stand."""
        if not self._needles:
            return []
        levels = self._undone(data)
        found = [list(self._matches(level)) for level in levels]
        # Seldom there are any: only then it matters where an escape stood.
        deepest = max((number for number, spans in enumerate(found) if spans), default=0)
        layers = [_Layer(self._escape, level) for level in levels[:deepest]]
        spans = []
        for number, matches in enumerate(found):
            for start, end in matches:
                for layer in reversed(layers[:number]):
                    start, end = layer.before(start, end)
                spans.append(_without_half_escapes(data, start, end))
        return _merged(spans)

    def _undone(self, data: bytes) -> list[bytes]:
        """The bytes as they are, then with their escapes undone, again and again."""
        levels = [data]
        while len(levels) <= _LEVELS_AT_MOST:
            undone = self._escape.sub(_character, levels[-1])
            if undone == levels[-1]:
                break
            levels.append(undone)
        return levels

    def _matches(self, data: bytes) -> Iterator[Span]:
        for needle in self._needles:
            start = data.find(needle)
            while start >= 0:
                yield start, start + len(needle)
                start = data.find(needle, start + len(needle))
            # A secret may be cut off where the text is.
            for size in range(min(len(needle) - 1, len(data)), SECRET_BYTES_AT_LEAST - 1, -1):
                if data.endswith(needle[:size]):
                    yield len(data) - size, len(data)
                    break

    def _spans_in_pieces(self, body: bytes) -> Iterator[Span]:
        """Where secrets stand in the texts that the events' pieces make together."""
        places: dict[bytes, list[Span]] = {}
        for match in _PIECE.finditer(body):
            if match.end(2) > match.start(2):
                places.setdefault(match.group(1), []).append(match.span(2))
        for pieces in places.values():
            if len(pieces) < 2:
                continue
            texts = [body[start:end] for start, end in pieces]
            ends = list(accumulate(map(len, texts)))
            for start, end in self._spans(b"".join(texts)):
                for at in range(bisect_right(ends, start), len(texts)):
                    begin = ends[at] - len(texts[at])
                    if begin >= end:
                        break
                    shift = pieces[at][0] - begin
                    yield max(start, begin) + shift, min(end, ends[at]) + shift
            if len(texts) > 2 and all(b.startswith(a) for a, b in pairwise(texts)):
                # Each has all text so far: also the beginning of a secret is one.
                for start, end in self._spans(texts[-1]):
                    for text, (shift, _) in zip(texts, pieces):
                        if start < len(text):
                            yield start + shift, min(end, len(text)) + shift


class _Layer:
    """Where the escapes of some bytes stand, before and after they are undone."""

    def __init__(self, escape: re.Pattern[bytes], data: bytes) -> None:
        self._spans: list[Span] = []  # before
        self._starts: list[int] = []  # after
        self._ends: list[int] = []
        shorter = 0
        for match in escape.finditer(data):
            start = match.start() - shorter
            shorter = match.end() - start - len(_character(match))
            self._spans.append(match.span())
            self._starts.append(start)
            self._ends.append(match.end() - shorter)

    def before(self, start: int, end: int) -> Span:
        """Where that stood before, escapes as a whole."""
        return self._place(start)[0], self._place(end - 1)[1]

    def _place(self, position: int) -> Span:
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return position, position + 1
        if position < self._ends[at]:
            return self._spans[at]
        position += self._spans[at][1] - self._ends[at]
        return position, position + 1


def _escapes_of(characters: bytes) -> re.Pattern[bytes]:
    """The escapes in which these characters, or base64, may be written. Others are passed over:
    JSON is full of them."""
    punctuation = set(re.findall(rb"[^A-Za-z0-9\x80-\xff]", characters + b"+/-_=")) - {b"\\"}
    names = [name for name, one in _ENTITIES.items() if one in punctuation or one == b"\\"]
    wide, high = b"", b""
    if not characters.isascii():
        wide = rb"|u(?P<pair>[Dd][89ABab]%b%b\\+u[Dd][C-Fc-f]%b%b)|u(?P<unit>%b{4})" % ((_HEX,) * 5)
        high = rb"|[89A-Fa-f]" + _HEX
    itself = b"".join(map(re.escape, sorted(punctuation)))
    return re.compile(
        # From the first of a run of backslashes (escapes may be escaped): each run is read once.
        rb"\\(?<!\\\\)\\*(?:(?:u00|x)(?P<code>[2-7]%b)|(?P<itself>[%b])" % (_HEX, itself)
        + wide
        # What they stand for cannot be told: where a secret has one, all are passed over.
        + (rb"|)" if b"\\" in characters else rb")")
        # An escaped escape is undone at once, unless a secret itself may look like an escape.
        + rb"|%%%b(?P<percent>[2-7]%b%b)"
        % (b"" if b"%" in characters else b"(?:25){0,3}", _HEX, high)
        + rb"|&%b(?:#0{0,6}(?P<decimal>[0-9]{2,3})"
        % (b"" if b"&" in characters else b"(?:amp;){0,3}")
        + rb"|#[xX]0{0,6}(?P<hexadecimal>[2-7]%b)|(?P<name>%b));" % (_HEX, b"|".join(names))
    )


def _character(match: re.Match[bytes]) -> bytes:
    """What an escape stands for."""
    kind = match.lastgroup
    if kind is None:  # backslashes alone
        return b""
    what = match[kind]
    if kind == "itself":
        return what
    if kind == "name":
        return _ENTITIES[what]
    if kind == "percent":
        return bytes([int(what, 16)])
    if kind == "pair":
        number = 0x10000 + ((int(what[:4], 16) & 0x3FF) << 10) + (int(what[-4:], 16) & 0x3FF)
    else:
        number = int(what, 10 if kind == "decimal" else 16)
    return chr(number).encode("utf-8", "surrogatepass")


def _as_base64(raw: bytes) -> Iterator[bytes]:
    """What base64 of any text with these bytes has, at each of the three places where they may
    begin: the characters that are made of nothing else."""
    for before in range(3):
        coded = base64.b64encode(bytes(before) + raw)
        core = coded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _without_half_escapes(data: bytes, start: int, end: int) -> Span:
    """The span and the escapes of JSON that it cuts: half of one makes the JSON unreadable."""
    before, after = _escape_across(data, start), _escape_across(data, end)
    return start if before is None else before[0], end if after is None else after[1]


def _escape_across(data: bytes, position: int) -> Span | None:
    """The escape that begins before a position and ends behind it."""
    at = data.rfind(b"\\", max(0, position - 5), position)
    if at < 0:
        return None
    first = at
    while first and data[first - 1 : first] == b"\\":
        first -= 1
    match = _JSON_ESCAPE.match(data, at) if (at - first) % 2 == 0 else None
    return match.span() if match is not None and match.end() > position else None


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _starred(data: bytes, spans: Sequence[Span]) -> bytes:
    stars = bytearray(data)
    for start, end in spans:
        # Digits may be a number of JSON, which has no stars.
        star = b"9" if data[start:end].isdigit() else b"*"
        stars[start:end] = star * (end - start)
    return bytes(stars)
