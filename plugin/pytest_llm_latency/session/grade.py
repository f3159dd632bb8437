"""A pytest session that grades a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..errors import ConfigError
from ..lab.files import Files
from ..lab.graded import GradedLab
from ..lab.protocol import Lab
from ..masking import Mask
from ..plan import Plan
from ..servers.logs import CommandLog, FileLog, Log
from ..steps.judges import MEASURED_BEHIND
from ..verdicts.blame import told_apart
from ..verdicts.verdict import Verdict
from .base import Session
from .settings import Settings

if TYPE_CHECKING:
    from ..wire.client import Client


LEVEL_WORDS = {
    "evidence": "evidence: every value is derived again from the recorded bytes",
    "contract": "artifacts alone (it has no run.json): the contract's form and relations",
}


class GradeSession(Session):
    """Grades a directory; opens no connection, and writes nothing but a page that is asked for."""

    def __init__(self, config: pytest.Config, settings: Settings, directory: Path) -> None:
        """Raises ConfigError, ArtifactError if there is nothing to grade."""
        super().__init__(config, settings)
        if not directory.is_dir():
            raise ConfigError(f"{settings.sources['grade']}: {directory} is not a directory")
        self._directory = directory
        self._lab = self._graded = GradedLab(directory, settings.file_bytes, self._log)
        if not self._graded.has_files():
            raise ConfigError(
                f"{settings.sources['grade']}: {directory} has none of the lab's files "
                "(health.json, sse_raw.txt, ttft.json): there is nothing to grade"
            )
        self.basis = self._graded.level

    def _log(self) -> bytes | None:
        """The log that the options name, for a directory without one."""
        log = given_log(self.settings, self.mask)
        if log is None:
            return None
        if isinstance(log, FileLog):
            path = Path(os.path.realpath(log.path))  # its user may have named a link
            files = Files(path.parent, self.settings.file_bytes)
            return self.mask.data(files.read_bytes(path.name))
        return self.mask.data(log.read(0))

    def header(self) -> list[str]:
        """What is graded, and on which level."""
        line = f"llm-latency: grading {self._directory} by its {LEVEL_WORDS[self.basis]}"
        return [self.language.say(line), *super().header()]

    def lab(self, plan: Plan, client: Callable[[], Client]) -> Lab:  # noqa: ARG002
        """The eight steps from the files."""
        return self._graded

    def expect(self, step: str, verdicts: Sequence[Verdict]) -> None:
        """The relations' verdicts, and those that only files can show."""
        __tracebackhide__ = True
        judged = self.told_apart(step, verdicts)
        compared = self.compared(step, judged)
        self.fail_or_skip([*judged, *self._graded.extra(step, judged)], compared)

    def told_apart(self, step: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """As the run told them apart: its words, or what it measured at the server behind."""
        words = self._graded.upstream_words(step) if step in MEASURED_BEHIND else None
        named = [replace(verdict, step=step) for verdict in verdicts]
        return super().told_apart(step, verdicts) if words is None else told_apart(named, words)

    def _facts_lines(self) -> list[str]:
        line = f"graded: {self._directory}, by its {LEVEL_WORDS[self.basis]}"
        return [line, *super()._facts_lines()]

    def finish(self, is_whole: bool) -> str | None:  # noqa: ARG002
        """Write the page, where one is asked for."""
        if self.settings.page is None:
            return None
        return self._make_page(self.settings.page, self._directory, self._verdicts)


def given_log(settings: Settings, mask: Mask) -> Log | None:
    """The log that the options name, None if they name none."""
    if settings.log is not None:
        return FileLog(settings.log, settings.sources["log"])
    if settings.log_command is not None:
        return CommandLog(settings.log_command, settings.sources["log_command"], mask)
    return None
