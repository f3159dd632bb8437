"""The pytest plugin: hooks and fixtures, nothing else.

What needs requests or a server is imported when a measurement begins: the plugin is loaded
in every pytest run of everyone who has it installed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from .errors import LatencyError
from .options import Settings, add_options, resolve

if TYPE_CHECKING:
    from .client import Client
    from .lab import Lab
    from .plan import Plan
    from .relations import Verdict
    from .rundir import RunDirectory
    from .server.ways import Server


class Expect(Protocol):
    """What the fixture `llm_expect` gives: judge verdicts, fail or skip with their words."""

    def __call__(self, *verdicts: Verdict) -> None: ...


MARKER = "llm_latency"
FIXTURES = frozenset(
    ("llm_artifacts", "llm_client", "llm_expect", "llm_lab", "llm_server", "llm_settings")
)
_session_key = pytest.StashKey["Session"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(step): a step of the LLM latency lab, or a test of your own that measures "
        "a server (kept in order, one server for all).",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Where this run measures, check all that can be checked before it begins."""
    config = session.config
    if config.option.collectonly or not any(_measures(item) for item in session.items):
        return
    from .session import Session

    try:
        config.stash[_session_key] = Session.begin(config, resolve(config), session.items)
    except LatencyError as error:
        raise pytest.UsageError(str(error)) from None


def _measures(item: pytest.Item) -> bool:
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say which server is meant; start none."""
    session = config.stash.get(_session_key, None)
    return session.header() if session is not None else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Errors of ours are sentences for a person, not tracebacks."""
    try:
        return (yield)
    except LatencyError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """The same for the test itself."""
    try:
        return (yield)
    except LatencyError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the outcome of every step in run.json."""
    report = yield
    session = item.config.stash.get(_session_key, None)
    marker = item.get_closest_marker(MARKER)
    if session is not None and marker is not None:
        session.reported(marker.kwargs.get("step"), report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of verdicts."""
    session = terminalreporter.config.stash.get(_session_key, None)
    if session is not None:
        session.summarize(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the run's directory free."""
    session = config.stash.get(_session_key, None)
    if session is not None:
        session.end()


@pytest.fixture(scope="session")
def llm_settings(pytestconfig: pytest.Config) -> Settings:
    """The options of this run, checked."""
    return pytestconfig.stash[_session_key].settings


@pytest.fixture(scope="session")
def llm_server_args(llm_settings: Settings) -> tuple[str, ...]:
    """More options for a server of our own. Override to serve in another way."""
    return llm_settings.server_args


@pytest.fixture(scope="session")
def llm_plan() -> Plan:
    """What the lab asks. Override to ask your own questions."""
    from .plan import Plan

    return Plan()


@pytest.fixture(scope="session")
def llm_artifacts(pytestconfig: pytest.Config) -> RunDirectory:
    """The directory of this run: `path`, `run_id`, `write`, `note`."""
    return pytestconfig.stash[_session_key].run


@pytest.fixture(scope="session")
def llm_server(
    pytestconfig: pytest.Config, llm_server_args: tuple[str, ...], llm_plan: Plan
) -> Iterator[Server]:
    """The server, ready: `base_url`, `kind`. One of our own ends with the session."""
    session = pytestconfig.stash[_session_key]
    with session.open_server(llm_server_args, llm_plan) as server:
        yield server


@pytest.fixture(scope="session")
def llm_client(pytestconfig: pytest.Config, llm_server: Server) -> Client:
    """A client of the server: `stream(messages, ...)` gives a Timeline."""
    return pytestconfig.stash[_session_key].client(llm_server)


@pytest.fixture(scope="session")
def llm_lab(request: pytest.FixtureRequest, llm_plan: Plan) -> Lab:
    """The eight steps; each is measured when it is first asked for."""
    session = request.config.stash[_session_key]
    return session.lab(llm_plan, lambda: request.getfixturevalue("llm_client"))


@pytest.fixture
def llm_expect(request: pytest.FixtureRequest) -> Expect:
    """Judge: `llm_expect(verdict, ...)` fails or skips with the verdict's words."""
    session = request.config.stash[_session_key]
    marker = request.node.get_closest_marker(MARKER)
    step = marker.kwargs.get("step") if marker is not None else None

    def expect(*verdicts: Verdict) -> None:
        __tracebackhide__ = True
        session.expect(step or request.node.name, verdicts)

    return expect
