"""What the options come to: command line, then environment, then ini file, then default.

A bad value raises `pytest.UsageError` that names where the value came from and what would be right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ..language import Language, default_code, language
from ..secrecy import Hidden, without_credentials
from ..verdicts.decision import ROUNDS_TO_COMPARE
from .option_values import PLAIN_URL, place_of, to_url, to_urls
from .options import OPTIONS, Option
from .settings import Settings

DEFAULT_ARTIFACTS = Path("voice") / "llm"
API_KEY_VARIABLE = "LLM_API_KEY"
UPSTREAM_API_KEY_VARIABLE = "LLM_UPSTREAM_API_KEY"


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
    if settings.upstream_url is not None and place_of(settings.upstream_url) in map(
        place_of, settings.urls
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
    if option.parse in (to_url, to_urls):
        return all(map(PLAIN_URL.fullmatch, text.split()))
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
