"""The hooks of a run that measures; registered for no other, which sees nothing of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

import pytest

from .errors import LatencyError
from .session import Session, step_of


def _in_words() -> Generator[None, object, object]:
    """Let the hook run; an error of ours becomes a failure with its sentence alone.

    It is raised outside of the handler: pytest would show both, one "during" the other.
    """
    try:
        return (yield)
    except LatencyError as error:
        words = str(error)
    pytest.fail(words, pytrace=False)


class MeasuringHooks:
    """Registered as a plugin when the collection shows that this run measures."""

    def __init__(self, session: Session, measures: Callable[[pytest.Item], bool]) -> None:
        self._session = session
        self._measures = measures

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say which server is meant; start none."""
        return self._session.header()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Errors of ours are sentences for a person, not tracebacks."""
        return (yield from _in_words())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """The same for the test itself."""
        return (yield from _in_words())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """The same for the end of fixtures."""
        return (yield from _in_words())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of every step in run.json."""
        report = yield
        if self._measures(item):
            self._session.reported(step_of(item), report)
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table of verdicts."""
        self._session.summarize(terminalreporter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write run.json; a run whose results could not be written has failed."""
        problem = self._session.finish()
        if problem is not None:
            print(f"llm-latency: {problem}", file=sys.stderr)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Give the run's directory free."""
        self._session.end()


class RefusingHooks:
    """Registered in a pytest-xdist worker: its measuring tests say why they do not run."""

    def __init__(self, measures: Callable[[pytest.Item], bool]) -> None:
        self._measures = measures

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Refuse before any fixture is set up."""
        if self._measures(item):
            pytest.fail(
                "pytest-xdist: workers that measure one server measure each other; run the "
                "latency tests without -n (or in a run of their own: -m llm_latency -p no:xdist)",
                pytrace=False,
            )
