"""Reads the values of options. Each raises ValueError with what was expected."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..language import CATALOGUES, default_code
from ..secrecy import Hidden, hide, hide_arguments
from ..sse import api_places

CHOSEN_BY_US = ("--host", "--port", "-m", "--model")
DEADLINES = ("connect", "first_byte", "gap", "total")
BODY_OF_OURS = frozenset(
    ("cache_prompt", "max_completion_tokens", "max_tokens", "messages", "model", "stream")
) | {"stream_options"}
# What would change how a request is measured; the key has its own door.
HEADERS_OF_OURS = frozenset(
    ("accept-encoding", "connection", "content-length", "content-type", "expect", "host")
) | {"transfer-encoding"}
# A URL that has no room for a password or a key, but in its path.
PLAIN_URL = re.compile(r"([A-Za-z]+:)?/{0,3}[\w.-]*(:\d*)?(/[\w./-]*)?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")


def split_url(command: str) -> list[str]:
    """Its arguments; none where a shell could not split it, which is said elsewhere."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def to_url(text: str) -> str:
    # Here, not above: the options are known in every pytest run, and seldom used.
    from requests.exceptions import RequestException
    from requests.models import PreparedRequest

    form = "a URL with scheme and host, such as http://localhost:8080"
    try:
        parts = urlsplit(text)
        PreparedRequest().prepare_url(text, None)
        usable = parts.port != 0
    except (ValueError, RequestException) as error:
        why = f" ({error})" if PLAIN_URL.fullmatch(text) else ""
        raise ValueError(form + why) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not usable:
        raise ValueError(form)
    if parts.query or parts.fragment:
        # Azure's of before needs a query with every request; its API of today needs none.
        host = parts.netloc.rpartition("@")[2]
        azure = f"; of Azure: {parts.scheme}://{host}/openai/v1, the deployment as --llm-model"
        raise ValueError("a URL without ? and #" + (azure if "/deployments/" in text else ""))
    if parts.username or parts.password:
        raise ValueError("a URL without a password in it; give a key with LLM_API_KEY")
    return text.rstrip("/")


def place_of(url: str) -> str:
    """A URL by which two names of one server on this machine are the same."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        host = "localhost"
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    root, paths = api_places(parts.path)
    return f"{parts.scheme}://{host}:{port}{root}{paths[0]}"


def to_urls(text: str) -> tuple[str, ...]:
    urls = tuple(map(to_url, text.split() or [""]))
    if len(set(map(place_of, urls))) < len(urls):
        raise ValueError("each URL once: two measurements of one server measure each other")
    return urls


def to_path(text: str) -> Path:
    if not text:
        raise ValueError("a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path; there is no such user") from None


def to_page(text: str) -> Path:
    path = to_path(text)
    if path.suffix not in (".html", ".htm") or path.is_dir():
        raise ValueError("a file whose name ends with .html")
    return path


def to_lang(text: str) -> str:
    code = default_code({"LANG": text})
    if code not in text.lower():  # what is no language of ours counts as English
        raise ValueError("one of " + ", ".join(CATALOGUES))
    return code


def to_one_of(values: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError("one of " + ", ".join(values))
        return text

    return parse


def to_positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a number above 0")
    return value


def to_share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a share of 0 or more, such as 0.25")
    return value


def to_whole(what: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < 1:
            raise ValueError(f"a whole number of {what}, at least 1")
        return int(text)

    return parse


def to_headers(text: str) -> Mapping[str, str]:
    headers = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        match = _HEADER.fullmatch(line)
        if match is None:
            raise ValueError("headers such as 'X-Tenant: blue'")
        name, value = match.groups()
        if name.lower() == "authorization":
            raise ValueError("no Authorization: a key comes from LLM_API_KEY or a file")
        if name.lower() == "x-conversation-id":
            raise ValueError("no X-Conversation-Id: with it, a stream outlives its reader")
        if name.lower() in HEADERS_OF_OURS:
            raise ValueError(f"headers without {name}, which is set here")
        headers[name] = Hidden(value)
    return headers


def to_body(text: str) -> Mapping[str, Any]:
    try:
        body = json.loads(text)
        # Infinity, NaN, 1e999 are no JSON, and half a surrogate pair is no text.
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a JSON object such as '{{\"temperature\": 0}}' ({error})") from None
    if not isinstance(body, dict):
        raise ValueError("a JSON object such as '{\"temperature\": 0}'")
    ours = sorted(BODY_OF_OURS & body.keys())
    if ours:
        raise ValueError(f"a JSON object without {', '.join(ours)}, which is set here")
    found: Mapping[str, Any] = hide(body)
    return found


def to_deadlines(text: str) -> Mapping[str, float]:
    deadlines_s = {}
    for part in text.replace(",", " ").split():
        name, _, seconds = part.partition("=")
        if name not in DEADLINES:
            raise ValueError(f"NAME=SECONDS, NAME being one of {', '.join(DEADLINES)}")
        deadlines_s[name] = to_positive(seconds)
    return deadlines_s


def to_text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text


def to_arguments(text: str) -> tuple[str, ...]:
    try:
        args = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"arguments as a shell splits them ({error})") from None
    for arg in args:
        if arg.partition("=")[0] in CHOSEN_BY_US:
            raise ValueError(f"arguments without {arg}: address, port and model are chosen here")
    return hide_arguments(args)
