"""compose.yaml and the workflow: valid by their schemas, and the job's very steps run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github" / "workflows" / "latency.yml"
COMPOSE = ROOT / "compose.yaml"


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


@pytest.mark.parametrize(
    ("path", "schema"), [(WORKFLOW, "vendor.github-workflows"), (COMPOSE, "vendor.compose-spec")]
)
def test_they_are_valid(path: Path, schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_serve_alike_and_are_pinned() -> None:
    composed, service = (
        load(COMPOSE)["services"]["llm"],
        load(WORKFLOW)["jobs"]["lab"]["services"]["llm"],
    )
    assert composed["image"] == service["image"]
    assert composed["image"].rpartition(":server-b")[2].isdecimal()
    assert composed["environment"] == service["env"]


@pytest.fixture
def python_without_packages(tmp_path: Path) -> Path:
    """The bin directory of a virtual environment that sees this one's packages, but not ours."""
    venv.create(tmp_path / "venv", with_pip=True)
    site = subprocess.run(
        [str(tmp_path / "venv/bin/python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    Path(site, "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return tmp_path / "venv" / "bin"


@pytest.mark.zoo
def test_the_steps_of_the_job(
    tmp_path: Path, serve: Callable[..., str], python_without_packages: Path
) -> None:
    """On a stand-alone server instead of the container, whose log a `docker` of ours prints."""
    url = serve()
    job = load(WORKFLOW)["jobs"]["lab"]
    (log,) = tmp_path.glob("server-*.log")
    docker = python_without_packages / "docker"
    docker.write_text(f"#!/bin/sh\ntest \"$*\" = 'logs c0ffee' && exec cat {log}\n")
    docker.chmod(0o755)
    checkout, summary = tmp_path / "checkout", tmp_path / "summary.md"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
    # Only below a step does GitHub know `job`.
    assert "${{" not in json.dumps([job["env"], job["services"]])
    assert job["env"]["LLM_URL"] == "http://localhost:8080"
    environment = {
        **os.environ, **job["env"], "LLM_URL": url, "GITHUB_STEP_SUMMARY": str(summary),
        "PATH": f"{python_without_packages}:{os.environ['PATH']}",
        # What the packages are is tested elsewhere: nothing is fetched here.
        "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "1",
    }  # fmt: skip
    for step in job["steps"]:
        if "run" not in step:
            continue
        given = {
            name: value.replace("${{ job.services.llm.id }}", "c0ffee")
            for name, value in step.get("env", {}).items()
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=checkout, env={**environment, **given}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{step['name']}: {done.stdout}{done.stderr}"
    assert "the log has the task&#x27;s cancel line" in summary.read_text()
    index = json.loads((checkout / "llm-latency" / "run.json").read_text())
    assert {entry["outcome"] for entry in index["steps"].values()} == {"passed"}
