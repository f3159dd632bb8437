"""What the words of a refusal complain of: a field, or the value of max_tokens. Pure.

Servers list what they allow, and repeat the request, behind what they complain of: there every
field is named, and none of them is meant.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..evidence.recording import Reply
from ..sse import has_events, value_of

MAX_TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
FIELDS = ("cache_prompt", "stream_options", *MAX_TOKENS_NAMES)
# What a server can do with where it names no minimum, and what a model that reasons needs.
MINIMUMS = (64, 1024)

_FIELD = rf"\b({'|'.join(FIELDS)})\b"
# What follows is a list of the fields that are allowed, or the request once more.
_ECHO = re.compile(
    r"expected one of|(?<!not )\b(?:supported|allowed|permitted|valid) "
    r"|\\*[\"'](?:input|request|request_body)\\*[\"']\s*:"
    r"|\b(?:input|request|request body|received)\s*[:=]\s*[{\[]",
    re.I,
)
_PLACE = re.compile(
    r"\\*[\"'](?:param|loc)\\*[\"']\s*:\s*(?:\\*[\"']([\w.]+)|[\[(]([^\])]*))", re.I
)
_DIRECT = (
    re.compile(
        r"(?:unknown|unrecogni[sz]ed|unsupported|unexpected|extraneous|extra|additional)\b"
        rf"[^.;{{}}]{{0,60}}?{_FIELD}",
        re.I,
    ),
    re.compile(
        rf"{_FIELD}[^\w.;{{}}]{{0,4}}(?:(?:is|was|are)\s+)?"
        r"(?:not |un)(?:supported|permitted|recogni[sz]ed|expected|allowed|known)",
        re.I,
    ),
)
_LIMIT = re.compile(r"\bmax_(?:completion_|output_|new_)?tokens\b|\boutput limit\b", re.I)
_AT_LEAST = re.compile(
    r"(>=|>|\bat least|\bgreater than or equal to|\bgreater than|\bmore than|\bminimum(?: value)?"
    r"|\b(?:no|not) less than)(?: of| is| to|:)?\s*[`'\"]?(\d{1,6})\b",
    re.I,
)
_ABOVE = re.compile(r">|(?:greater|more) than", re.I)
_TOO_SMALL = re.compile(
    r"below[ _]min|limit was reached|too (?:small|low)|higher (?:value|max|limit)|increase", re.I
)


@dataclass(frozen=True)
class Complaint:
    """`field` is what is refused, `minimum` what max_tokens must at least be; None: not said.
    `model`: a model must be named."""

    field: str | None = None
    minimum: int | None = None
    model: bool = False


def complaint_of(body: bytes, max_tokens: int) -> Complaint:
    """What a refusal of a request that asked for so many tokens complains of."""
    value = value_of(body)
    text = body.decode("utf-8", "replace")
    if value is not None:  # without escapes: "\u0027max_tokens\u0027"
        text = json.dumps(value, ensure_ascii=False)
    words = _ECHO.split(text, maxsplit=1)[0]
    minimum = _minimum(words, max_tokens)
    if minimum is not None:
        return Complaint(minimum=minimum)
    field = _field(text, words)
    wants = field is None and re.search("required|missing|must", words, re.I) is not None
    return Complaint(field, model=wants and "model" in words)


def _minimum(words: str, max_tokens: int) -> int | None:
    """What max_tokens must at least be, if that is what the words complain of."""
    if _LIMIT.search(words) is None:
        return None
    for how, number in _AT_LEAST.findall(words):
        minimum = int(number) + (_ABOVE.fullmatch(how) is not None)
        if minimum > max_tokens:
            return minimum
    if _TOO_SMALL.search(words) is None:
        return None
    return next((minimum for minimum in MINIMUMS if minimum > max_tokens), None)


def _field(text: str, words: str) -> str | None:
    """The field that is named as refused: in its own place, in so many words, or at all."""
    for name, parts in _PLACE.findall(text):
        found = re.search(_FIELD, f"{name} {parts}")
        if found is not None:
            return found.group(1)
    for pattern in (*_DIRECT, re.compile(_FIELD)):
        found = pattern.search(words)
        if found is not None:
            return found.group(1)
    return None


def knows_the_chat(reply: Reply) -> int:
    """How surely an answer to an empty chat is that of an API which has the chat there: 2 it speaks
    of what a chat is made of, 1 it may be, 0 it is not told from an answer to any other path."""
    value = reply.json()
    if reply.status == 200:  # some servers stream whatever is asked
        answers = isinstance(value, dict) and "choices" in value
        return 2 if answers or has_events(reply.body) else 0
    text = reply.body[:10_000].decode("utf-8", "replace")
    # A path holds such words, too.
    speaks = re.search(r"\b(messages|model|prompt)\b", re.sub(r"/\S*", " ", text), re.I)
    if speaks is not None and not text.lstrip().startswith("<"):
        return 2
    return int(isinstance(value, dict) and reply.status in (400, 422, 429))
