"""The settings that a session works by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..masking import Mask
from ..secrecy import hide_arguments, secrets_in, secrets_of_headers, secrets_of_key, shown
from ..steps.sentence.sentences import Rule
from .option_values import split_url


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
            found |= {*secrets_in(hide_arguments(split_url(self.log_command)))}
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
