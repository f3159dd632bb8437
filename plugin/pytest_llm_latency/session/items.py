"""Which tests measure, and how long one may take. It knows pytest, and nothing of servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

PLUGIN = "pytest_llm_latency.plugin"  # the module in which our fixtures are defined
FIXTURES = ("llm_artifacts", "llm_client", "llm_expect", "llm_lab", "llm_server", "llm_settings")
TEST_TIMEOUT_S = 900


def measures(item: pytest.Item) -> bool:
    """Whether a test uses a fixture of ours. It is known by where it is defined, not by its name:
    any suite may have an `llm_client` of its own, and nothing of this plugin is then its matter."""
    info = getattr(item, "_fixtureinfo", None)
    found = getattr(info, "name2fixturedefs", {})
    return any(uses_ours(name, found.get(name, ())) for name in FIXTURES)


def uses_ours(name: str, definitions: Sequence[Any]) -> bool:
    """Whether a fixture's name leads to ours: the last definition counts, and the one before it
    where it asks for the fixture that it overrides."""
    for definition in reversed(definitions):
        if getattr(definition.func, "__module__", None) == PLUGIN:
            return True
        if name not in definition.argnames:
            return False
    return False


def bound_in_time(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Bound every measuring test, where its user has not: the function alone, by a signal, so that
    fixtures end well. Nothing without pytest-timeout (`-p no:timeout`)."""
    if not config.pluginmanager.hasplugin("timeout"):
        return
    if config.getoption("timeout", None) or config.getini("timeout"):
        return
    for item in filter(measures, items):
        if item.get_closest_marker("timeout") is None:
            mark = pytest.mark.timeout(TEST_TIMEOUT_S, method="signal", func_only=True)
            item.add_marker(mark)
