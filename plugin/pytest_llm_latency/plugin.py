"""The pytest plugin: hooks and fixtures, nothing else.

What needs requests or a server is imported when a measurement begins: the plugin is loaded
in every pytest run of everyone who has it installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from .errors import LatencyError
from .options import Settings, add_options, check_ini_was_found, resolve

if TYPE_CHECKING:
    from .client import Client
    from .plan import Plan
    from .relations import Verdict
    from .results import Lab
    from .rundir import RunDirectory
    from .server.ways import Server
    from .session import Session


class Expect(Protocol):
    """What the fixture `llm_expect` gives: judge verdicts, fail or skip with their words."""

    def __call__(self, *verdicts: Verdict) -> None: ...


MARKER = "llm_latency"
TEST_TIMEOUT_S = 900
FIXTURES = frozenset(
    ("llm_artifacts", "llm_client", "llm_expect", "llm_lab", "llm_server", "llm_settings")
)
_session_key: pytest.StashKey[Session] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    check_ini_was_found(config)
    config.addinivalue_line(
        "markers",
        f"{MARKER}(step): a step of the LLM latency lab; run.json keeps its outcome by that name.",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bound every measuring test in time, where its user has not.

    The method "signal" with the function alone lets fixtures end the server; pytest-timeout's
    other ways leave it to the guard.
    """
    given = config.getoption("timeout", None) or config.getini("timeout")
    if config.pluginmanager.hasplugin("timeout") and not given:
        for item in items:
            if _measures(item) and item.get_closest_marker("timeout") is None:
                bound = pytest.mark.timeout(TEST_TIMEOUT_S, method="signal", func_only=True)
                item.add_marker(bound)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Where this run measures, check all that can be checked before it begins."""
    config = session.config
    if not _runs(config) or not any(_measures(item) for item in session.items):
        return
    from .hooks import MeasuringHooks, RefusingHooks

    if hasattr(config, "workerinput"):
        config.pluginmanager.register(RefusingHooks(_measures), "llm-latency-refusing")
        return
    try:
        measuring = _begin(config, session.items)
    except LatencyError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_session_key] = measuring
    config.pluginmanager.register(MeasuringHooks(measuring, _measures), "llm-latency-measuring")


def _runs(config: pytest.Config) -> bool:
    """Whether tests will run: not with --collect-only, --setup-plan and the like."""
    return not (config.option.collectonly or config.getoption("setupplan", False))


def _begin(config: pytest.Config, items: list[pytest.Item]) -> Session:
    """The session that the options ask for. Raises LatencyError, pytest.UsageError."""
    from .session import GradeSession, step_of

    settings = resolve(config)
    if settings.grade is not None:
        return GradeSession(config, settings, settings.grade)
    # Only now: it imports requests, whose urllib3 opens a socket to try out IPv6.
    from .live import LiveSession

    return LiveSession(config, settings, frozenset(map(step_of, items)))


def _session(config: pytest.Config) -> Session:
    session = config.stash.get(_session_key, None)
    if session is None:
        raise pytest.UsageError(
            "a test must name its llm_* fixtures as arguments, or with usefixtures: asked for by "
            "getfixturevalue alone, they are not seen before the run begins"
        )
    return session


def _measures(item: pytest.Item) -> bool:
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def llm_settings(pytestconfig: pytest.Config) -> Settings:
    """The options of this run, checked."""
    return _session(pytestconfig).settings


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
    return _session(pytestconfig).run


@pytest.fixture(scope="session")
def llm_server(
    pytestconfig: pytest.Config, llm_server_args: tuple[str, ...], llm_plan: Plan
) -> Iterator[Server]:
    """The server, ready: `base_url`, `kind`. One of our own ends with the session."""
    session = _session(pytestconfig)
    with session.open_server(llm_server_args, llm_plan) as server:
        yield server


@pytest.fixture(scope="session")
def llm_client(pytestconfig: pytest.Config, llm_server: Server) -> Client:
    """A client of the server: `stream(messages, ...)` gives a Timeline."""
    return _session(pytestconfig).client(llm_server)


@pytest.fixture(scope="session")
def llm_ready(request: pytest.FixtureRequest, llm_settings: Settings) -> None:
    """A server that is ready; a grading needs none."""
    if llm_settings.grade is None:
        request.getfixturevalue("llm_client")


@pytest.fixture(scope="session")
def llm_lab(request: pytest.FixtureRequest, llm_plan: Plan) -> Lab:
    """The eight steps; each is measured when it is first asked for."""
    session = _session(request.config)
    return session.lab(llm_plan, lambda: request.getfixturevalue("llm_client"))


@pytest.fixture
def llm_expect(request: pytest.FixtureRequest) -> Expect:
    """Judge: `llm_expect(verdict, ...)` fails or skips with the verdict's words."""
    from .session import step_of

    session = _session(request.config)
    step = step_of(request.node)

    def expect(*verdicts: Verdict) -> None:
        __tracebackhide__ = True
        session.expect(step, verdicts)

    return expect
