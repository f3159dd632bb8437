"""The hooks of a run that measures; registered for no other, which sees nothing of them.

They pass on what pytest says, and know nothing of servers.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator

import pytest

from ..errors import LatencyError, NotDoneYet, RateLimited
from ..language import Language
from ..report.inert import inert_block
from ..report.terminal import write_comparison
from .resolve import language_of
from .signals import ending_as_by_ctrl_c
from .targets import Targets, send_to_controller


def _in_words(
    language: Language, judge: Callable[[RateLimited], None] | None = None
) -> Generator[None, object, object]:
    """Let the hook run; an error of ours becomes a failure with its sentence alone, or what `judge`
    makes of it.

    It is raised outside of the handler: pytest would show both, one "during" the other.
    """
    __tracebackhide__ = True
    try:
        return (yield)
    except LatencyError as error:
        failure = error
    if judge is not None and isinstance(failure, RateLimited):
        judge(failure)
        return None
    words = inert_block(language.say(str(failure)))
    if isinstance(failure, NotDoneYet):
        pytest.skip(words)
    pytest.fail(words, pytrace=False)


class MeasuringHooks:
    """Registered as a plugin when the collection shows that this run measures."""

    def __init__(
        self, config: pytest.Config, targets: Targets, measures: Callable[[pytest.Item], bool]
    ) -> None:
        self._config = config
        self._language = language_of(config)
        self._targets = targets
        self._measures = measures

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say which server is meant; start none."""
        return self._targets.header()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """What is measured is kept, and told, whatever signal ends the run."""
        with ending_as_by_ctrl_c() if self._measures(item) else contextlib.nullcontext():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Errors of ours are sentences for a person, not tracebacks."""
        if self._measures(item):
            self._targets.begin_item(item)
        return (yield from _in_words(self._language))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """The same for the test itself; a limit that refused its requests is a verdict."""
        judge = functools.partial(self._targets.limited, item) if self._measures(item) else None
        return (yield from _in_words(self._language, judge))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """The same for the end of fixtures."""
        return (yield from _in_words(self._language))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of every step in run.json."""
        report = yield
        if self._measures(item):
            self._targets.reported(item, report)
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The tables of verdicts, and what a CI job shows."""
        self._targets.summarize(terminalreporter)
        self._targets.tell_ci(terminalreporter)
        write_comparison(terminalreporter, self._language, self._targets.figures())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write run.json; a run whose results could not be written has failed."""
        for _, measuring in self._targets.made():
            problem = measuring.finish(session.exitstatus != pytest.ExitCode.INTERRUPTED)
            if problem is not None:
                words = self._language.say(f"llm-latency: {problem}")
                print(inert_block(words), file=sys.stderr)
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if hasattr(self._config, "workeroutput"):
            send_to_controller(self._config, self._targets)

    def pytest_unconfigure(self) -> None:
        """Give the run's directories free."""
        for _, measuring in self._targets.made():
            measuring.end()


class RefusingHooks:
    """Registered in a pytest-xdist worker: its measuring tests say why they do not run."""

    def __init__(self, config: pytest.Config, measures: Callable[[pytest.Item], bool]) -> None:
        self._language = language_of(config)
        self._measures = measures

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Refuse before any fixture is set up."""
        if self._measures(item):
            words = (
                "pytest-xdist: workers that measure one server measure each other; run the "
                "latency tests without -n (or in a run of their own: -m llm_latency -p no:xdist), "
                "or several targets, which get a worker each (--llm-url=URL --llm-url=URL)"
            )
            pytest.fail(self._language.say(words), pytrace=False)
