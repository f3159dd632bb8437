"""The sessions of a run, one a target: which item measures which, in what order, and what they
give side by side. With one target, which is the rule, there is nothing to see of it. It does not
know what is measured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ..compare.numbers import Number
from ..errors import ConfigError, RateLimited
from ..report import ci
from ..report.terminal import Lines, write_comparison
from ..verdicts.verdict import Verdict
from ..wire.costs import Costs
from .base import Session, step_of
from .grade import GradeSession
from .resolve import language_of, resolve
from .settings import Settings
from .target import target_names, target_of

OUTPUT = "llm_latency"
_told_key: pytest.StashKey[list[tuple[str, object]]] = pytest.StashKey()


class Targets:
    """Every session of this run. One that measures is made when it is first asked for, or by
    `begin`, which so checks all that can be checked."""

    def __init__(
        self, config: pytest.Config, settings: Settings, items: Sequence[pytest.Item]
    ) -> None:
        """Raises ConfigError where options exclude each other."""
        self._config = config
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._steps: dict[str, set[str]] = {}
        self._costs: Costs | None = None  # of all targets together
        for item in items:
            self._steps.setdefault(target_of(item), set()).add(step_of(item))
        if len(settings.urls) > 1:
            _check_several(settings)

    def begin(self) -> None:
        """Make all sessions. Raises LatencyError."""
        for name in self._steps:
            self.session(name)

    def session(self, name: str) -> Session:
        """The session of a target; "" where there is but one."""
        if name not in self._sessions:
            self._sessions[name] = self._make(name)
        return self._sessions[name]

    def begin_item(self, item: pytest.Item) -> None:
        """An item's test begins, perhaps not for the first time."""
        session = self._sessions.get(target_of(item))
        if session is not None:
            session.begin(step_of(item), item.nodeid.partition("[")[0])

    def limited(self, item: pytest.Item, error: RateLimited) -> None:
        """An item's requests were refused by a limit."""
        __tracebackhide__ = True
        self._sessions[target_of(item)].limited(step_of(item), error)

    def reported(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """An item's test has ended."""
        session = self._sessions.get(target_of(item))
        if session is None:  # it could not be made
            return
        step = step_of(item)
        session.reported(step, report)
        if report.when == "call":
            self._tell_reports(item, report, session.verdicts_of(step), session.numbers(step))

    def _tell_reports(
        self,
        item: pytest.Item,
        report: pytest.TestReport,
        verdicts: Sequence[Verdict],
        numbers: Mapping[str, Number],
    ) -> None:
        """Verdicts and numbers for the reports of others: properties of a JUnit file's test case
        (which come with its teardown), a table in pytest-html's."""
        properties: list[tuple[str, object]] = [
            *((f"{one.step}: {one.relation}", one.outcome) for one in verdicts),
            *((name, "" if value is None else value) for name, value in numbers.items()),
        ]
        told = item.stash.get(_told_key, [])  # when the item ran before
        item.user_properties[:] = [one for one in item.user_properties if one not in told]
        item.stash[_told_key] = properties
        item.user_properties.extend(properties)
        report.user_properties.extend(properties)
        if self._config.pluginmanager.hasplugin("html") and properties:
            from pytest_html import extras

            table = extras.html(ci.html_table(verdicts, numbers, language_of(self._config).say))
            # pytest-html's own attribute
            setattr(report, "extras", [*getattr(report, "extras", []), table])  # noqa: B010

    def _make(self, name: str) -> Session:
        settings = self._settings
        if settings.grade is not None:
            return GradeSession(self._config, settings, settings.grade)
        # Only now: it imports requests, whose urllib3 opens a socket to try out IPv6.
        from .live import LiveSession

        if name:
            url = dict(zip(target_names(settings.urls), settings.urls))[name]
            settings = replace(settings, urls=(url,), artifacts=settings.artifacts / name)
        if self._costs is None:
            source = settings.sources["budget"]
            self._costs = Costs(settings.budget_tokens, source, len(self._steps))
        return LiveSession(self._config, settings, frozenset(self._steps[name]), self._costs)

    def made(self) -> list[tuple[str, Session]]:
        """(name, session) of the sessions that there are."""
        return list(self._sessions.items())

    def header(self) -> list[str]:
        """Lines for the top of the run."""
        return [
            line.replace("llm-latency:", f"llm-latency: {name}:", 1) if name else line
            for name, session in self.made()
            for line in session.header()
        ]

    def summarize(self, reporter: pytest.TerminalReporter | Lines) -> None:
        """Write the table of every target."""
        for name, session in self.made():
            session.summarize(reporter, _title(name))

    def tell_ci(self, reporter: pytest.TerminalReporter | Lines) -> None:
        """Where this runs in a GitHub workflow: its job's summary, and its annotations."""
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        for name, session in self.made():
            if summary:
                problem = ci.append_summary(Path(summary), session.markdown(_title(name)))
                if problem is not None:
                    reporter.write_line(problem)
            if os.environ.get("GITHUB_ACTIONS") == "true":
                for line in session.annotations():
                    reporter.write_line(line)

    def figures(self) -> dict[str, Mapping[str, float]]:
        """What each target gave, by name."""
        return {name: session.figures() for name, session in self.made() if name}


def _title(target: str) -> str:
    return f"LLM latency, {target}" if target else "LLM latency"


def _check_several(settings: Settings) -> None:
    flags = {
        "api_key": "an API key: it would go to all of them",
        "headers": "headers: they would go to all of them",
        "log": "a log: whose is it?",
        "log_command": "a log: whose is it?",
        "page": "a page: of which?",
        "upstream_url": "a server behind: behind which?",
        "grade": "a directory to grade",
        "baseline": "a baseline: which of them is it of?",
    }
    for name, why in flags.items():
        if getattr(settings, name):
            raise ConfigError(
                f"{settings.sources['url']}: several targets do not go with {why}; measure them in "
                "runs of their own"
            )


_TARGET_IN_ID = re.compile(r"\[(?:[^\]]*-)?(url[0-9]+)(?:-[^\]]*)?\]$")


class ControllerHooks:
    """Registered where pytest-xdist's workers measure several targets: gives each target to one
    worker, and shows what they send."""

    def __init__(self, config: pytest.Config) -> None:
        """Raises pytest.UsageError: a worker's own would be told to nobody."""
        try:
            _check_several(resolve(config))
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from None
        self._language = language_of(config)
        self._texts: list[str] = []
        self._figures: dict[str, Mapping[str, float]] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """All tests of a target to one worker, in their order; any others as they come. (The marker
        xdist_group does nothing with pytest-xdist 3.8 and pytest 9.)"""
        from xdist.scheduler import LoadScopeScheduling

        class ByTarget(LoadScopeScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                match = _TARGET_IN_ID.search(nodeid)
                return match.group(1) if match is not None else nodeid

        return ByTarget(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended."""
        output = getattr(node, "workeroutput", {}).get(OUTPUT)
        if output is not None:
            self._texts.append(output["text"])
            self._figures.update(output["figures"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Every worker's tables, then the comparison."""
        for text in filter(None, self._texts):
            terminalreporter.write_line(text)
        write_comparison(terminalreporter, self._language, dict(sorted(self._figures.items())))


def send_to_controller(config: pytest.Config, targets: Targets) -> None:
    """From a worker: what its controller shall show."""
    lines = Lines()
    targets.summarize(lines)
    targets.tell_ci(lines)
    config.workeroutput[OUTPUT] = {  # type: ignore[attr-defined]
        "text": lines.text(),
        "figures": targets.figures(),
    }
