"""What users name: the facade, the README's code, and the paths that CONTRIBUTING.md gives."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from readme import README, readme_code

import pytest_llm_latency
from pytest_llm_latency import Plan

NAMES = [
    "Cause",
    "Client",
    "Expect",
    "Lab",
    "Piece",
    "Plan",
    "Recording",
    "Timeline",
    "Verdict",
    "decide",
    "errors",
    "relations",
]
RELATIONS = ["cached_below_uncached", "comes_as_made", "long_above_short", "ttft_below_total"]


def test_the_facade_has_these_names_and_no_others() -> None:
    assert pytest_llm_latency.__all__ == NAMES
    for name in NAMES:
        assert getattr(pytest_llm_latency, name) is not None
    assert pytest_llm_latency.relations.__all__ == RELATIONS
    assert set(NAMES) <= set(dir(pytest_llm_latency))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pytest_llm_latency.nothing


def test_what_is_not_named_is_not_loaded() -> None:
    program = (
        "import sys, pytest_llm_latency; print([n for n in sys.modules if 'llm_latency.' in n])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_users_are_shown_the_facade_alone() -> None:
    for path in [README, *README.parent.glob("docs/*.md"), README.with_name("README.zh-CN.md")]:
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from (pytest_llm_latency\S*) import (.+)$", text, re.M):
            assert module == "pytest_llm_latency", f"{path}: {module}"
            assert set(names.split(", ")) <= set(NAMES), f"{path}: {names}"


def test_the_readme_s_plan_is_one() -> None:
    tree = ast.parse(readme_code("def llm_plan"))
    tree.body[-1].decorator_list.clear()  # type: ignore[attr-defined]
    found: dict[str, object] = {}
    exec(compile(tree, "README.md", "exec"), found)
    assert isinstance(found["llm_plan"](), Plan)  # type: ignore[operator]


def test_contributing_names_files_that_are_there() -> None:
    text = README.with_name("CONTRIBUTING.md").read_text(encoding="utf-8")
    linked = [Path(place) for place in re.findall(r"\]\(([^)#]+)\)", text)]
    assert len(linked) > 20
    assert [place for place in linked if not (README.parent / place).exists()] == []
    areas = {
        one.name
        for one in (README.parent / "plugin/pytest_llm_latency").iterdir()
        if (one / "__init__.py").exists()
    }
    assert areas == set(re.findall(r"^\| `(\w+)/` \|", text, re.M))
