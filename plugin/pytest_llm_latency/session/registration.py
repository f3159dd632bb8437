"""Our options beside those of others: registered last, so that nobody else's is refused for ours.

pytest takes an option's name once. A conftest with an option of one of our names keeps it: what
that means is said where ours would be used, and nowhere else.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from .options import OPTIONS, Option

LAB = "test_llm_latency"  # the package of the eight steps
GROUP = "llm-latency"


def is_loaded_by_a_conftest(manager: pytest.PytestPluginManager) -> bool:
    """Whether conftests are being loaded already, and one of them has named this plugin."""
    return any(map(_is_conftest, manager.get_plugins()))


def _is_conftest(plugin: object) -> bool:
    return Path(getattr(plugin, "__file__", None) or "").name == "conftest.py"


def add_options(parser: pytest.Parser, manager: pytest.PytestPluginManager) -> None:
    """Register every option that nobody else has, and the ini values."""
    if manager.get_plugin(_Registered.NAME) is not None:
        return
    taken = _taken(parser)
    manager.register(_Registered(taken), _Registered.NAME)
    group = parser.getgroup(GROUP, "latency of a streaming LLM server")
    for option in OPTIONS:
        if option.flag not in taken:
            group.addoption(option.flag, help=option.help, **_arguments(option))
        parser.addini(option.ini, f"default of {option.flag}: {option.help}", default=None)


class _Registered:
    """Remembers, as a plugin, that the options are there, and which of them are others'."""

    NAME = "llm-latency-options"

    def __init__(self, taken: Sequence[str]) -> None:
        self.taken = taken


def _arguments(option: Option) -> dict[str, object]:
    """As argparse's add_argument takes them."""
    bare = {"nargs": "?", "const": ""} if option.bare else {}
    action = "append" if option.often else "store"
    return {"dest": option.dest, "action": action, "metavar": option.metavar, **bare}


def _taken(parser: pytest.Parser) -> list[str]:
    """The flags among ours that the parser knows already."""
    flags = [option.flag for option in OPTIONS]
    if not _known(parser, flags):
        return []
    return [flag for flag in flags if _known(parser, [flag])]


def _known(parser: pytest.Parser, flags: Sequence[str]) -> bool:
    """Whether the parser knows one of the flags."""
    try:
        _, unknown = parser.parse_known_and_unknown_args([f"{flag}=x" for flag in flags])
    except (pytest.UsageError, SystemExit):
        return True  # it knows it well enough to refuse the value
    return len(unknown) < len(flags)


class _Quiet(argparse.ArgumentParser):
    """Raises what it would print: pytest's own parser says it later."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(message)


def add_markers(config: pytest.Config) -> None:
    """Register our marker, and pytest-order's where it is not there to do so."""
    if not config.pluginmanager.hasplugin("pytest_order"):
        config.addinivalue_line("markers", "order(index): of pytest-order, which is not there.")
    config.addinivalue_line(
        "markers",
        "llm_latency(step): a step of the LLM latency lab; run.json keeps its outcome so named.",
    )


def read_early(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Let pytest look for conftests as if it knew our options: a value of theirs is no place of
    tests. Where a directory is to be graded and no test is named, take the lab's steps: what lies
    in the current directory are other tests, if any. `args` is the command line, not yet parsed."""
    ours = _Quiet(add_help=False, allow_abbrev=False)
    for option in OPTIONS:
        ours.add_argument(option.flag, **_arguments(option))  # type: ignore[arg-type]
    try:
        found, rest = ours.parse_known_args(args)
        places = parser.parse_known_args(rest).file_or_dir
    except (ValueError, pytest.UsageError):
        return
    known = config.known_args_namespace
    known.file_or_dir = places
    is_grading = any(vars(found)[one.dest] is not None for one in OPTIONS if one.name == "grade")
    named = places or (
        config.getini("testpaths") and config.invocation_params.dir == config.rootpath
    )
    if is_grading and not named and importlib.util.find_spec(LAB) is not None:
        known.pyargs, known.file_or_dir = True, [LAB]
        args += ["--pyargs", LAB]


def check_options_are_ours(config: pytest.Config) -> None:
    """Raise pytest.UsageError where this run measures, and an option of ours is another's."""
    registered = config.pluginmanager.get_plugin(_Registered.NAME)
    if registered is None or not registered.taken:
        return
    flag = registered.taken[0]
    owner = _owner(config.pluginmanager.get_plugins(), flag)
    raise pytest.UsageError(
        f"{flag}: {owner} adds an option of this name, and so does pytest-llm-latency, with which "
        "a test here measures: rename the other one"
    )


def _owner(plugins: Iterable[object], flag: str) -> str:
    """The file that adds an option, as far as its source tells."""
    for plugin in plugins:
        hook = getattr(plugin, "pytest_addoption", None)
        try:
            if hook is not None and flag in inspect.getsource(hook):
                return str(inspect.getsourcefile(hook))
        except (OSError, TypeError):
            continue
    return "another plugin"


def check_ini_was_found(config: pytest.Config) -> None:
    """Raise pytest.UsageError where a path among our options made pytest miss its ini file.

    Before it knows a plugin's options, pytest takes every argument that is an existing path
    for a place to look for its ini file: `--llm-kb DIR` hides the one of this directory.
    """
    args = config.invocation_params.args
    flags = {option.flag for option in OPTIONS if option.is_path}
    trapped = [
        (flag, value) for flag, value in pairwise(args) if flag in flags and Path(value).exists()
    ]
    here = config.invocation_params.dir
    expected = next((p for d in (here, *here.parents) if (p := d / "pytest.ini").is_file()), None)
    if trapped and expected is not None and config.inipath != expected:
        flag, value = trapped[0]
        raise pytest.UsageError(
            f"{flag} {value}: pytest took this path for the place of its ini file and missed "
            f"{expected}; write {flag}={value}"
        )


def check_something_grades(config: pytest.Config) -> None:
    """Raise pytest.UsageError where a directory is to be graded, and no test does it."""
    grade = next(option for option in OPTIONS if option.name == "grade")
    if config.getoption(grade.dest, None) is not None:
        raise pytest.UsageError(
            "--llm-grade: none of the selected tests grades a directory; the lab's steps do: "
            f"pytest --pyargs {LAB} --llm-grade=DIR"
        )
