"""Which values are secrets: what an option's name, a header's or a URL's says of them. Pure.

How a secret is found again in what a server sends says `masking.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

STARS = "<secret>"
_NAME = re.compile(
    r"(.*[-_.])?(api|access|private|secret|signing|auth|account|subscription)?[-_.]?"
    r"(key|token|secret|secrets|pass|passwd|password|passphrase|signature|sig|credential|"
    r"credentials|auth|authorization|cookie|jwt|bearer|hft)"
)
# Tokens of a text, and keys of a cache.
_NO_SECRET = re.compile(
    r".*\b(bos|eos|pad|unk|sep|cls|mask|stop|start|end|begin|first|last|next|image|think|cache)"
    r"[-_.](token|key)"
)
_SNAKE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# What people give where a key must be given and none is wanted.
_PLACEHOLDERS = frozenset(
    ("anything", "dummy-key", "fake-key", "lm-studio", "llama.cpp", "no-key-required")
) | {"no-api-key", "not-needed", "not-required", "placeholder", "sk-no-key-required"}
# Headers whose values are no secrets, nor is the name of a model.
_PLAIN_HEADER = re.compile(
    r"accept(-.*)?|cache-control|date|dnt|from|origin|pragma|priority|referer|traceparent|"
    r"user-agent|via|.*model.*|.*-version"
)
_PLAIN_VALUE = re.compile(
    r"[A-Za-z]{1,20}|(application|text|image|audio)/[\w.+*-]+|keep-alive|no-(cache|store|transform)"
)
_CREDENTIALS = re.compile(
    r"(?<=//)[^/?#\s\"'<>@]*(?:@[^/?#\s\"'<>@]*)*(?=@)"  # a URL's user and password
    r"|(?<=[?&;])([\w.~%-]+)=([^&;#\s\"'<>]+)"
    r"|\b(Bearer|Basic)(\s+)[\w.~+/=-]{8,}"
    r"|(?<![\w-])--?([A-Za-z][\w-]*)(?:=|\s+)([^\s'\"]+)",  # an option of a command
    re.IGNORECASE,
)


class Hidden(str):
    """A secret that no repr shows: --showlocals prints them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return STARS


def is_secret_name(name: str) -> bool:
    """Whether a value of that name is a secret: `api_key`, `X-Auth-Token`, `sig`, `hfToken`."""
    plain = _SNAKE.sub("_", name).lower()
    return _NAME.fullmatch(plain) is not None and _NO_SECRET.fullmatch(plain) is None


def hide(value: Any, is_secret: bool = False) -> Any:
    """A JSON value, the texts of secret names in it hidden."""
    if isinstance(value, str):
        return Hidden(value) if is_secret else value
    if isinstance(value, dict):
        return {
            name: hide(inner, is_secret or is_secret_name(name)) for name, inner in value.items()
        }
    if isinstance(value, list):
        return [hide(inner, is_secret) for inner in value]
    return value


def hide_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """A command line, the values of secret options in it hidden."""
    found: list[str] = []
    for before, argument in zip(("", *arguments), arguments):
        flag, _, value = argument.partition("=")
        if _is_secret_flag(before) or (value and _is_secret_flag(flag)):
            argument = Hidden(argument)
        found.append(argument)
    return tuple(found)


def _is_secret_flag(flag: str) -> bool:
    return flag.startswith("-") and "=" not in flag and is_secret_name(flag.lstrip("-"))


def shown(value: Any) -> Any:
    """A JSON value without what is hidden in it, and without the credentials in its texts."""
    if isinstance(value, Hidden):
        return STARS
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(inner) for inner in value]
    return value


def without_credentials(text: str) -> str:
    """Words without the user and password of a URL, values of secret names in its query and among
    the options of a command, and what follows "Bearer"."""
    return _CREDENTIALS.sub(_starred, text)


def _starred(match: re.Match[str]) -> str:
    name, value = (match[1], match[2]) if match[1] else (match[5], match[6])
    if match[3]:
        return f"{match[3]}{match[4]}{STARS}"
    if not name:
        return STARS if match[0] else ""
    return match[0].removesuffix(value) + STARS if is_secret_name(name) else match[0]


def secrets_in(value: Any) -> Iterator[str]:
    """All that is hidden in a JSON value, or in a command line."""
    if isinstance(value, Hidden):
        yield from _with_parts(value.partition("=")[2] if value.startswith("-") else value)
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from secrets_in(inner)


def secrets_of_key(key: str | None) -> Iterator[str]:
    """An API key, but for what only stands where one must be."""
    if key and key.lower() not in _PLACEHOLDERS:
        yield key


def secrets_of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """The values of headers of one's own, and their parts, but for common ones: a value that
    stands in ordinary text would be starred there."""
    for name, value in headers.items():
        if is_secret_name(name):
            yield from _with_parts(value)
        elif _PLAIN_HEADER.fullmatch(name.lower()) is None:
            yield from (one for one in _with_parts(value) if not _PLAIN_VALUE.fullmatch(one))


def _with_parts(value: str) -> Iterator[str]:
    """The value as a whole, unless it is in itself a structure (JSON, several lines), and what it
    is made of: a server may repeat the token alone."""
    if not re.search(r'["\r\n]', value):
        yield value
    yield from filter(None, re.split(r'[\s",;]+|(?<=\w)=(?=\w)', value))
