"""The pytest plugin: hooks and fixtures, nothing else.

What needs requests or a server is imported when a measurement begins: the plugin is loaded
in every pytest run of everyone who has it installed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from .errors import LatencyError
from .session import registration
from .session.items import bound_in_time, measures, uses_ours
from .session.resolve import language_of, resolve, urls_of
from .session.settings import Settings

if TYPE_CHECKING:
    from .evidence.run_directory import RunDirectory
    from .lab.protocol import Lab
    from .plan import Plan
    from .servers.choice import Server
    from .session.base import Expect, Session
    from .session.targets import Targets
    from .verdicts.verdict import Verdict
    from .wire.client import Client


_targets_key: pytest.StashKey[Targets] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the options: at once where a conftest loads this plugin, else after them."""
    if registration.is_loaded_by_a_conftest(pluginmanager):
        registration.add_options(parser, pluginmanager)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Register the options when the conftests have theirs: an option of theirs is not ours."""
    registration.read_early(early_config, parser, args)
    try:
        return (yield)
    finally:
        registration.add_options(parser, early_config.pluginmanager)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and what shows the results of xdist's workers."""
    registration.check_ini_was_found(config)
    if config.getoption("dist", "no") != "no" and len(urls_of(config)) > 1:
        from .session.targets import ControllerHooks

        config.pluginmanager.register(ControllerHooks(config), "llm-latency-controller")
    registration.add_markers(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Several targets: every measuring test once for each."""
    definitions = metafunc.definition._fixtureinfo.name2fixturedefs.get("llm_target", ())
    if uses_ours("llm_target", definitions) and len(urls_of(metafunc.config)) > 1:
        from .session.target import each_target

        each_target(metafunc, urls_of(metafunc.config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """One target after another (pytest-order mixes them), and every test bounded in time."""
    yield
    if any(map(measures, items)) and len(urls_of(config)) > 1:
        from .session.target import target_of

        items.sort(key=target_of)
    bound_in_time(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Where this run measures, check all that can be checked before it begins."""
    config = session.config
    if config.option.collectonly or config.getoption("setupplan", False):
        return
    if not any(map(measures, session.items)):
        registration.check_something_grades(config)
        return
    registration.check_options_are_ours(config)
    from .session.hooks import MeasuringHooks, RefusingHooks
    from .session.targets import Targets

    is_worker = hasattr(config, "workerinput")
    if is_worker and len(urls_of(config)) < 2:
        config.pluginmanager.register(RefusingHooks(config, measures), "llm-latency-refusing")
        return
    try:
        targets = Targets(config, resolve(config), list(filter(measures, session.items)))
        if not is_worker:  # a worker does not know yet which of them it will measure
            targets.begin()
    except LatencyError as error:
        raise pytest.UsageError(language_of(config).say(str(error))) from None
    config.stash[_targets_key] = targets
    hooks = MeasuringHooks(config, targets, measures)
    config.pluginmanager.register(hooks, "llm-latency-measuring")


def _session(request: pytest.FixtureRequest, target: str) -> Session:
    targets = request.config.stash.get(_targets_key, None)
    if targets is None:
        raise pytest.UsageError(
            "a test must name its llm_* fixtures as arguments, or with usefixtures: asked for by "
            "getfixturevalue alone, they are not seen before the run begins"
        )
    return targets.session(target)


@pytest.fixture(scope="session")
def llm_target(request: pytest.FixtureRequest) -> str:
    """The target that is measured, "url1" or "url2"; empty where there is but one."""
    return str(getattr(request, "param", ""))


@pytest.fixture(scope="session")
def llm_settings(request: pytest.FixtureRequest, llm_target: str) -> Settings:
    """The options of this run, checked."""
    return _session(request, llm_target).settings


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
def llm_artifacts(request: pytest.FixtureRequest, llm_target: str) -> RunDirectory:
    """The directory of this run: `path`, `run_id`, `write`, `note`."""
    return _session(request, llm_target).run


@pytest.fixture(scope="session")
def llm_server(
    request: pytest.FixtureRequest,
    llm_target: str,
    llm_server_args: tuple[str, ...],
    llm_plan: Plan,
) -> Iterator[Server]:
    """The server, ready: `base_url`, `kind`. One of our own ends with the session."""
    session = _session(request, llm_target)
    with session.open_server(llm_server_args, llm_plan) as server:
        yield server


@pytest.fixture(scope="session")
def llm_client(request: pytest.FixtureRequest, llm_target: str, llm_server: Server) -> Client:
    """A client of the server: `stream(messages, ...)` gives a Timeline."""
    return _session(request, llm_target).client(llm_server)


@pytest.fixture(scope="session")
def llm_ready(request: pytest.FixtureRequest, llm_settings: Settings) -> None:
    """A server that is ready; a grading needs none."""
    if llm_settings.grade is None:
        request.getfixturevalue("llm_client")


@pytest.fixture(scope="session")
def llm_lab(request: pytest.FixtureRequest, llm_target: str, llm_plan: Plan) -> Lab:
    """The eight steps; each is measured when it is first asked for."""
    session = _session(request, llm_target)
    return session.lab(llm_plan, lambda: request.getfixturevalue("llm_client"))


@pytest.fixture
def llm_expect(request: pytest.FixtureRequest, llm_target: str) -> Expect:
    """Judge: `llm_expect(verdict, ...)` fails or skips with the verdict's words."""
    from .session.base import step_of

    session = _session(request, llm_target)
    step = step_of(request.node)

    def expect(*verdicts: Verdict) -> None:
        __tracebackhide__ = True
        session.expect(step, verdicts)

    return expect
