"""The hooks of a run that measures; registered for no other, which sees nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from .errors import LatencyError
from .session import Session


class MeasuringHooks:
    """Registered as a plugin when the collection shows that this run measures."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say which server is meant; start none."""
        return self._session.header()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Errors of ours are sentences for a person, not tracebacks."""
        try:
            return (yield)
        except LatencyError as error:
            pytest.fail(str(error), pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """The same for the test itself."""
        try:
            return (yield)
        except LatencyError as error:
            pytest.fail(str(error), pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of every step in run.json."""
        report = yield
        marker = item.get_closest_marker("llm_latency")
        if marker is not None:
            self._session.reported(marker.kwargs.get("step"), report)
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table of verdicts."""
        self._session.summarize(terminalreporter)

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
