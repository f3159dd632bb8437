"""Every option once: its name, environment variable, ini, default, check; and the Settings.

Precedence: command line, then environment, then ini file, then default. A bad value raises
`pytest.UsageError` that names where the value came from and what would be right.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from .decision import ROUNDS_TO_COMPARE
from .language import CATALOGUES, Language, default_code, language
from .masking import Mask
from .secrecy import (
    Hidden,
    hide,
    hide_arguments,
    secrets_in,
    secrets_of_headers,
    secrets_of_key,
    shown,
    without_credentials,
)
from .sentences import RULES, Rule
from .speech import WORDS_PER_MINUTE
from .sse import BYTES_AT_MOST, api_places

INCONCLUSIVE = ("fail", "skip")
SERVER_KINDS = ("auto", "url", "voice-llm", "llama-server", "local")
DEFAULT_ARTIFACTS = Path("voice") / "llm"
CHOSEN_BY_US = ("--host", "--port", "-m", "--model")
API_KEY_VARIABLE = "LLM_API_KEY"
UPSTREAM_API_KEY_VARIABLE = "LLM_UPSTREAM_API_KEY"
DEADLINES = ("connect", "first_byte", "gap", "total")
BODY_OF_OURS = frozenset(
    ("cache_prompt", "max_completion_tokens", "max_tokens", "messages", "model", "stream")
) | {"stream_options"}
# What would change how a request is measured; the key has its own door.
HEADERS_OF_OURS = frozenset(
    ("accept-encoding", "connection", "content-length", "content-type", "expect", "host")
) | {"transfer-encoding"}
# A URL that has no room for a password or a key, but in its path.
_PLAIN_URL = re.compile(r"([A-Za-z]+:)?/{0,3}[\w.-]*(:\d*)?(/[\w./-]*)?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")


@dataclass(frozen=True, repr=False)
class Settings:
    """The options of a session, checked. Paths are absolute; `kb` None: the lab's own;
    `headers` and `body` go with every request, `deadlines_s` has those that differ from ours;
    `sources` says where each value came from. No repr shows what is secret."""

    urls: tuple[str, ...]
    upstream_url: str | None
    upstream_model: str | None
    model: str | None
    gguf: Path | None
    server: str
    server_args: tuple[str, ...]
    artifacts: Path
    grade: Path | None
    baseline: Path | None
    tolerance: float
    rounds: int
    kb: Path | None
    log: Path | None
    log_command: str | None
    start_timeout_s: float
    max_bytes: int
    inconclusive: str
    sentence: Rule
    speech_wpm: float
    page: Path | None
    body: Mapping[str, Any]
    deadlines_s: Mapping[str, float]
    budget_tokens: int | None
    ca: Path | None
    lang: str
    api_key_file: Path | None
    headers: Mapping[str, str]
    api_key: str | None
    upstream_api_key: str | None
    sources: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Settings({self.shown()})"

    def mask(self) -> Mask:
        """What stars the secrets among the options. A model's name is none: it is asked for."""
        found = {
            *secrets_of_key(self.api_key),
            *secrets_of_key(self.upstream_api_key),
            *secrets_of_headers(self.headers),
            *secrets_in([self.body, self.server_args]),
        }
        if self.log_command is not None:
            found |= {*secrets_in(hide_arguments(_split(self.log_command)))}
        return Mask(found - {self.model, self.upstream_model})

    @property
    def file_bytes(self) -> int:
        """How large evidence or a log may be to be read: what `max_bytes` lets come is escaped
        there, and runs of before let more come."""
        return max(256 * 1024 * 1024, 3 * self.max_bytes)

    def shown(self) -> dict[str, Any]:
        """The options as facts of the run: no secrets."""
        hidden = {"api_key", "upstream_api_key", "headers", "sources"}
        facts = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(self).items()
            if name not in hidden
        }
        facts["headers"] = sorted(self.headers)  # a value may be a secret
        found: dict[str, Any] = self.mask().value(shown(facts))
        return found


def _split(command: str) -> list[str]:
    """Its arguments; none where a shell could not split it, which is said elsewhere."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


@dataclass(frozen=True)
class Option:
    """One option. `parse` takes the text and raises ValueError with what would be right; one
    that may be given `often` gets a line each; the text of a `secret` one may hold a key, and is
    not shown; one that may be given `bare`, without a value, then has the text ""."""

    name: str
    parse: Callable[[str], Any]
    help: str
    default: Any = None
    metavar: str = "TEXT"
    often: bool = False
    secret: bool = False
    bare: bool = False

    @property
    def flag(self) -> str:
        return "--llm-" + self.name.replace("_", "-")

    @property
    def dest(self) -> str:
        """Nobody else's: two options of one `dest` would share their value in silence."""
        return f"{__package__}_{self.name}"

    @property
    def ini(self) -> str:
        return "llm_" + self.name

    @property
    def is_path(self) -> bool:
        return self.parse in (_path, _page)

    @property
    def variable(self) -> str:
        return "LLM_" + self.name.upper()


def _url(text: str) -> str:
    # Here, not above: the options are known in every pytest run, and seldom used.
    from requests.exceptions import RequestException
    from requests.models import PreparedRequest

    form = "a URL with scheme and host, such as http://localhost:8080"
    try:
        parts = urlsplit(text)
        PreparedRequest().prepare_url(text, None)
        usable = parts.port != 0
    except (ValueError, RequestException) as error:
        why = f" ({error})" if _PLAIN_URL.fullmatch(text) else ""
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


def _place(url: str) -> str:
    """A URL by which two names of one server on this machine are the same."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        host = "localhost"
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    root, paths = api_places(parts.path)
    return f"{parts.scheme}://{host}:{port}{root}{paths[0]}"


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(map(_url, text.split() or [""]))
    if len(set(map(_place, urls))) < len(urls):
        raise ValueError("each URL once: two measurements of one server measure each other")
    return urls


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path; there is no such user") from None


def _page(text: str) -> Path:
    path = _path(text)
    if path.suffix not in (".html", ".htm") or path.is_dir():
        raise ValueError("a file whose name ends with .html")
    return path


def _lang(text: str) -> str:
    code = default_code({"LANG": text})
    if code not in text.lower():  # what is no language of ours counts as English
        raise ValueError("one of " + ", ".join(CATALOGUES))
    return code


def _one_of(values: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError("one of " + ", ".join(values))
        return text

    return parse


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a number above 0")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a share of 0 or more, such as 0.25")
    return value


def _whole(what: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < 1:
            raise ValueError(f"a whole number of {what}, at least 1")
        return int(text)

    return parse


def _headers(text: str) -> Mapping[str, str]:
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


def _body(text: str) -> Mapping[str, Any]:
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


def _deadlines(text: str) -> Mapping[str, float]:
    deadlines_s = {}
    for part in text.replace(",", " ").split():
        name, _, seconds = part.partition("=")
        if name not in DEADLINES:
            raise ValueError(f"NAME=SECONDS, NAME being one of {', '.join(DEADLINES)}")
        deadlines_s[name] = _positive(seconds)
    return deadlines_s


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text


def _arguments(text: str) -> tuple[str, ...]:
    try:
        args = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"arguments as a shell splits them ({error})") from None
    for arg in args:
        if arg.partition("=")[0] in CHOSEN_BY_US:
            raise ValueError(f"arguments without {arg}: address, port and model are chosen here")
    return hide_arguments(args)


OPTIONS = (
    Option(
        "url",
        _urls,
        "measure the server at URL; it is never stopped. Given more than once: one after another",
        default=(),
        metavar="URL",
        often=True,
    ),
    Option(
        "upstream_url",
        _url,
        "the server behind the one at --llm-url: what is broken is measured there, too",
        metavar="URL",
    ),
    Option("upstream_model", _text, "model name to send to the server behind", metavar="NAME"),
    Option("api_key_file", _path, "file that holds the API key (or LLM_API_KEY)", metavar="FILE"),
    Option("model", _text, "model name to send with every request", metavar="NAME"),
    Option("gguf", _path, "model file for a server of our own", metavar="FILE"),
    Option(
        "server",
        _one_of(SERVER_KINDS),
        "the way of having a server: " + ", ".join(SERVER_KINDS),
        default="auto",
        metavar="KIND",
    ),
    Option(
        "server_args",
        _arguments,
        "more options for a server of our own, as llama-server spells them",
        default=(),
        metavar="ARGS",
        secret=True,
    ),
    Option(
        "artifacts",
        _path,
        "directory of the run's files (default: voice/llm)",
        metavar="DIR",
    ),
    Option(
        "grade",
        _path,
        "grade DIR (default: voice/llm) from its files alone, without a server",
        metavar="DIR",
        bare=True,
    ),
    Option(
        "page",
        _page,
        "write the page there (default: report.html in the run's directory; a grading writes none)",
        metavar="FILE",
    ),
    Option(
        "baseline",
        _path,
        "put this run's ratios beside those of the run in DIR; worse ones fail",
        metavar="DIR",
    ),
    Option(
        "tolerance",
        _share,
        "how much worse than in the baseline a ratio may be (default: 0.25)",
        default=0.25,
        metavar="SHARE",
    ),
    Option(
        "rounds",
        _whole("rounds"),
        "measure prefill, cache and sentence at least N times (default: 1; 5 with --llm-baseline)",
        metavar="N",
    ),
    Option("kb", _path, "directory of at least 12 Markdown documents", metavar="DIR"),
    Option("log", _path, "the server's log file", metavar="FILE"),
    Option("log_command", _text, "command that prints the server's log", metavar="CMD"),
    Option(
        "start_timeout",
        _positive,
        "seconds that a server may take to load its model (default: 120)",
        default=120.0,
        metavar="S",
    ),
    Option(
        "max_bytes",
        _whole("bytes"),
        "end an answer that is longer (default: 16777216)",
        default=BYTES_AT_MOST,
        metavar="N",
    ),
    Option(
        "inconclusive",
        _one_of(INCONCLUSIVE),
        "what a verdict that noise hides does to its test: fail (default) or skip",
        default="fail",
        metavar="WHAT",
    ),
    Option(
        "sentence",
        _one_of(RULES),
        "how the first sentence is found: plain (default, the lab's) or careful",
        default="plain",
        metavar="RULE",
    ),
    Option(
        "speech_wpm",
        _positive,
        "words a minute of the voice that speaks the answer (default: 150)",
        default=WORDS_PER_MINUTE,
        metavar="N",
    ),
    Option(
        "header",
        _headers,
        "'NAME: VALUE' to send with every request; may be given more than once",
        default={},
        metavar="LINE",
        often=True,
        secret=True,
    ),
    Option(
        "body",
        _body,
        "JSON object to add to every chat request: temperature, chat_template_kwargs",
        default={},
        metavar="JSON",
        secret=True,
    ),
    Option(
        "deadlines",
        _deadlines,
        "seconds by name: connect=10,first_byte=300,gap=300,total=600 (the defaults)",
        default={},
        metavar="NAME=S",
    ),
    Option("budget", _whole("tokens"), "ask for no more tokens than N in a run", metavar="N"),
    Option("ca", _path, "certificates (PEM) to trust instead of the system's", metavar="FILE"),
    Option(
        "lang",
        _lang,
        f"language of what is shown: {', '.join(CATALOGUES)} (default: the locale's, or en)",
        metavar="LANG",
    ),
)


def resolve(config: pytest.Config, environment: Mapping[str, str] | None = None) -> Settings:
    """The session's Settings. Raises pytest.UsageError."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        values[option.name], sources[option.name] = _value(option, config, environment)
    values["rounds"] = values["rounds"] or (ROUNDS_TO_COMPARE if values["baseline"] else 1)
    values["lang"] = values["lang"] or default_code(environment)
    values["start_timeout_s"] = values.pop("start_timeout")
    values["deadlines_s"] = values.pop("deadlines")
    values["budget_tokens"] = values.pop("budget")
    values["headers"] = values.pop("header")
    values["urls"] = values.pop("url")
    values["artifacts"] = values["artifacts"] or config.invocation_params.dir / DEFAULT_ARTIFACTS
    if values["grade"] == "":
        values["grade"] = values["artifacts"]
    settings = Settings(
        **values,
        api_key=_api_key(values["api_key_file"], sources["api_key_file"], environment),
        upstream_api_key=_checked_key(
            environment.get(UPSTREAM_API_KEY_VARIABLE) or None, UPSTREAM_API_KEY_VARIABLE
        ),
        sources=sources,
    )
    if settings.log is not None and settings.log_command is not None:
        raise pytest.UsageError(
            f"{sources['log']} and {sources['log_command']}: give one of the two"
        )
    if settings.upstream_url is not None and not settings.urls:
        raise pytest.UsageError(f"{sources['upstream_url']}: give the URL before it: --llm-url")
    needs_url = "upstream_url" if settings.upstream_url is not None else "url"
    if settings.server not in ("auto", "url") and (
        settings.upstream_url is not None or len(settings.urls) > 1
    ):
        raise pytest.UsageError(
            f"{sources[needs_url]}: does not go with --llm-server={settings.server}"
        )
    if settings.upstream_url is not None and _place(settings.upstream_url) in map(
        _place, settings.urls
    ):
        raise pytest.UsageError(f"{sources['upstream_url']}: it is the server at --llm-url itself")
    if settings.ca is not None:
        _check_certificates(settings.ca, sources["ca"])
    return settings


def language_of(config: pytest.Config) -> Language:
    """The language of what people read, for those who have no Settings. Raises
    pytest.UsageError."""
    (option,) = (option for option in OPTIONS if option.name == "lang")
    code, _ = _value(option, config, os.environ)
    return language(code or default_code(os.environ))


def _value(
    option: Option, config: pytest.Config, environment: Mapping[str, str]
) -> tuple[Any, str]:
    """(the option's value, where it came from). Raises pytest.UsageError."""
    text, source, base = _find(option, config, environment)
    if text is None:
        return option.default, source
    if option.bare and not text:
        return text, source
    try:
        value = option.parse(text)
    except ValueError as error:
        what = repr(without_credentials(text)) if _may_be_shown(option, text) else "the value"
        raise pytest.UsageError(f"{source}: {what} is not right; give {error}") from None
    return base / value if isinstance(value, Path) else value, source


def _may_be_shown(option: Option, text: str) -> bool:
    """Whether the text of an option that is wrong cannot be a secret."""
    if option.parse in (_url, _urls):
        return all(map(_PLAIN_URL.fullmatch, text.split()))
    return not option.secret


def _check_certificates(path: Path, source: str) -> None:
    import ssl  # seldom needed

    if not path.is_file():
        raise pytest.UsageError(f"{source}: there is no file {path}")
    try:
        ssl.create_default_context(cafile=str(path))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{source}: no certificates in {path}: {error}") from None


def urls_of(config: pytest.Config) -> tuple[str, ...]:
    """The targets of this run, as given: `resolve` says what is wrong with them."""
    text, _, _ = _find(OPTIONS[0], config, os.environ)
    return tuple((text or "").split())


def _find(
    option: Option, config: pytest.Config, environment: Mapping[str, str]
) -> tuple[str | None, str, Path]:
    """(the option's text, where it stands, the directory that a path there starts from)."""
    here = config.invocation_params.dir
    given = config.getoption(option.dest, None)
    if given is not None:
        return "\n".join(given) if option.often else str(given), option.flag, here
    if environment.get(option.variable):
        return environment[option.variable], f"environment variable {option.variable}", here
    ini = config.getini(option.ini)
    if ini and config.inipath is not None:
        return str(ini), f"{option.ini} in {config.inipath}", config.inipath.parent
    return None, option.flag, here


def _api_key(path: Path | None, source: str, environment: Mapping[str, str]) -> str | None:
    """The key. A command line is public, so the key itself is never an option."""
    if path is None:
        key, source = environment.get(API_KEY_VARIABLE), API_KEY_VARIABLE
        if not key:
            return None
    else:
        try:
            key = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise pytest.UsageError(f"{source}: cannot read {path}: {error}") from None
    return _checked_key(key, source)


def _checked_key(key: str | None, source: str) -> str | None:
    if key is None:
        return None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise pytest.UsageError(f"{source}: the key is empty or has characters no header can carry")
    return Hidden(key)
