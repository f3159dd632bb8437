"""What is built, and what a user gets from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist of this checkout, built from a copy of it."""
    source = tmp_path_factory.mktemp("source") / "project"
    skipped = shutil.ignore_patterns(".venv", ".git", "voice", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=skipped)
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    return out


def test_the_wheel_holds_plugin_and_lab_and_no_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        "pytest_llm_latency/py.typed",
        "pytest_llm_latency/sse.py",
        "pytest_llm_latency/servers/guard.py",
        "pytest_llm_latency/report/terminal.py",
        "pytest_llm_latency/report/templates/page.html.jinja",
        "pytest_llm_latency/report/templates/page.css",
        "pytest_llm_latency/locale/zh_CN/LC_MESSAGES/pytest_llm_latency.mo",
        "test_llm_latency/__init__.py",
        "test_llm_latency/test_5_cache.py",
    }
    assert expected <= names
    assert len([name for name in names if name.startswith("test_llm_latency/kb/")]) == 12
    assert not [name for name in names if "tests/" in name or name.startswith("conftest")]


def test_every_module_of_the_package_is_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "plugin" / "pytest_llm_latency"
    modules = {str(path.relative_to(package.parent)) for path in package.rglob("*.py")}
    assert modules <= names


def test_the_sdist_can_run_the_project_s_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pytest.ini", "conftest.py", "Makefile", "LICENSE", "CHANGELOG.md", "README.zh-CN.md",
        "plugin/tests/pytest.ini", "plugin/tests/scripted.py", "plugin/tests/unit/test_timeline.py",
    } <= names  # fmt: skip


def test_four_runtime_packages_and_no_others() -> None:
    required = metadata.requires("pytest-llm-latency") or []
    runtime = sorted(line.partition(">")[0] for line in required if "extra ==" not in line)
    assert runtime == ["pytest", "pytest-order", "pytest-timeout", "requests"]


def test_the_entry_point_has_the_name_of_its_module() -> None:
    """Then entry point, root conftest and -p name one plugin, and it is loaded once."""
    (point,) = [p for p in metadata.entry_points(group="pytest11") if "llm_latency" in p.name]
    assert point.name == point.value == "pytest_llm_latency.plugin"


def test_a_checkout_runs_uninstalled_and_installed_and_by_name(tmp_path: Path) -> None:
    """The root's conftest with the entry point, with -p beside it, and without an entry point."""
    for args in ((), ("-p", "pytest_llm_latency.plugin")):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--co", "-q", "-p", "no:cacheprovider", *args],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "8 tests collected" in done.stdout
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.metadata as m\n"
        "whole = m.distributions\n"
        "m.distributions = lambda **k: [d for d in whole(**k) if 'latency' not in d.name]\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--co", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert "8 tests collected" in done.stdout, done.stdout + done.stderr
    assert "llm-latency-" not in done.stdout
