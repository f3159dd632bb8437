"""What does the installed plugin change in the suites of other projects?

Fetches the sources of some small projects, makes a virtual environment, and runs each project's own
tests without the plugin and with it. Every test must have the same outcome. Prints a row a project;
exit 1: one differs.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLUGIN = "pytest_llm_latency.plugin"
# The project, where its tests lie, and what they need beside it.
PROJECTS = {
    "attrs": ("tests", ("hypothesis", "cloudpickle")),
    "click": ("tests", ()),
    "h11": ("h11", ()),
    "itsdangerous": ("tests", ("freezegun",)),
    "jinja2": ("tests", ("trio",)),
    "markupsafe": ("tests", ()),
    "pluggy": ("testing", ()),
}


def outcomes(python: Path, project: Path, tests: str, *args: str) -> dict[str, str]:
    """The outcome of every test, by its name."""
    report = project / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", tests, "-p", "no:cacheprovider", *args]
    done = subprocess.run(
        [*command, f"--junit-xml={report}"], cwd=project, capture_output=True, text=True
    )
    if not report.exists():
        raise SystemExit(f"{project.name}: no test ran:\n{done.stdout[-800:]}{done.stderr[-800:]}")
    found = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[name] = kinds[0] if kinds else "passed"
    return found


def main() -> int:
    """Run all; print a table."""
    differ = False
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "-q"]
        subprocess.run([*pip, "install", str(ROOT)], check=True)
        print("| project | tests | outcomes without | with the plugin | differ |")
        print("|---|---|---|---|---|")
        for name, (tests, needed) in PROJECTS.items():
            subprocess.run(
                [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(place), name],
                check=True,
            )
            (archive,) = place.glob(f"{name}-*.tar.gz")
            with tarfile.open(archive) as sources:
                sources.extractall(place, filter="data")
            project = place / archive.name.removesuffix(".tar.gz")
            subprocess.run([*pip, "install", str(project), *needed], check=True)
            without = outcomes(python, project, tests, "-p", f"no:{PLUGIN}")
            beside = outcomes(python, project, tests)
            differing = [
                test for test in {**without, **beside} if without.get(test) != beside.get(test)
            ]
            differ = differ or bool(differing)
            counts = [
                ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(found.values()).items()))
                for found in (without, beside)
            ]
            print(f"| {project.name} | {len(beside)} | {' | '.join(counts)} | {len(differing)} |")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
