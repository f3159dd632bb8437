"""Imports run one way, and the plugin stays light for those who do not measure."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest_llm_latency

PACKAGE = Path(pytest_llm_latency.__file__).parent

# Each module may import what stands before it, and `server` what its row says.
ORDER = [
    "errors", "files", "secrecy", "masking", "language", "strictjson", "sse", "arrivals", "connections", "sentences", "recording", "refusals", "limits", "thoughts", "timeline", "dialect", "heaps", "held", "speech", "artifacts", "slots", "serverlog", "plan", "decision", "results", "asked", "budget", "numbers",
    "causes", "relations", "figures", "baseline", "kb", "client", "costs", "capabilities", "stamps", "rundir", "server", "steps", "lab", "contract", "proof", "grade", "compared",
    "options", "registration", "items", "signals", "report", "session", "live", "targets", "hooks", "plugin", "write_schemas",
]  # fmt: skip
PYTEST_ONLY_IN = {
    "options",
    "registration",
    "items",
    "report",
    "session",
    "live",
    "targets",
    "hooks",
    "plugin",
}
# Programs of their own, run by their path.
ALONE = {"sse.py", "guard.py", "embedded_main.py"}


def imports(path: Path) -> list[tuple[str, bool]]:
    """(top name, whether of this package) of every import outside TYPE_CHECKING."""
    found: list[tuple[str, bool]] = []
    depth = len(path.relative_to(PACKAGE).parts) - 1
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found += [(name.name.split(".")[0], False) for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(((node.module or "").split(".")[0], False))
        elif isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            names = [node.module] if node.module else [name.name for name in node.names]
            found += [(name.split(".")[0], True) for name in names]
    return found


def modules() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
    ]


def test_every_module_has_its_place_and_imports_only_earlier_ones() -> None:
    for name, path in modules():
        assert name in ORDER, path
        for imported, ours in imports(path):
            if ours and imported != name:
                assert ORDER.index(imported) < ORDER.index(name), f"{path} imports {imported}"


def test_only_the_outer_modules_know_pytest() -> None:
    for name, path in modules():
        if name not in PYTEST_ONLY_IN:
            assert "pytest" not in {top for top, _ in imports(path)}, path


def test_programs_run_by_path_import_nothing_of_the_package() -> None:
    for _, path in modules():
        if path.name in ALONE:
            assert not [top for top, ours in imports(path) if ours or top == "pytest_llm_latency"]


def test_every_module_opens_with_its_sentence() -> None:
    for _, path in modules():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_the_plugin_is_under_two_hundred_lines() -> None:
    assert len((PACKAGE / "plugin.py").read_text(encoding="utf-8").splitlines()) < 200


def test_loading_the_plugin_imports_no_http() -> None:
    program = (
        "import sys; import pytest_llm_latency.plugin; "
        "print({'requests', 'urllib3', 'xllamacpp', 'ctypes'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": ""},
    )
    assert done.stdout.strip() == "set()"
