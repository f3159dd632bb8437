"""Imports run one way, and the plugin stays light for those who do not measure."""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest_llm_latency

PACKAGE = Path(pytest_llm_latency.__file__).parent

# The areas of the package, each with its modules (by path, the first match counts) and the areas
# that they may import besides their own. What opens a socket is in `wire`, `servers`, `measuring`
# and what stands on them: nothing that judges or grades may import these.
AREAS: list[tuple[str, str, str]] = [
    ("facade", "__init__ relations", "base evidence verdicts"),
    ("base", "errors language masking secrecy plan sse kb look", ""),
    ("evidence", "evidence/*", "base"),
    ("verdicts", "verdicts/*", "base evidence"),
    ("requests", "wire/dialect wire/refusals wire/costs", "base evidence"),
    ("wire", "wire/*", "base evidence requests"),
    ("logs", "servers/logs", "base"),
    ("servers", "servers/*", "base evidence requests wire logs"),
    ("measuring", "steps/bench steps/rounds steps/*/measure steps/cancel/watch",
     "base evidence verdicts requests wire logs servers steps"),
    ("steps", "steps/*", "base evidence verdicts requests"),
    ("proof", "proof/*", "base evidence verdicts requests steps"),
    ("live lab", "lab/live", "base evidence verdicts logs steps measuring lab"),
    ("lab", "lab/*", "base evidence verdicts steps proof"),
    ("compare", "compare/*", "base evidence verdicts steps proof lab"),
    ("report", "report/*", "base evidence verdicts steps proof lab compare"),
    ("live session", "session/live session/clients session/server session/facts session/targets session/hooks",
     "base evidence verdicts requests wire logs servers steps measuring lab live~lab compare report "
     "session"),
    ("session", "session/*", "base evidence verdicts steps logs lab compare report requests"),
    ("plugin", "plugin write_schemas", "base evidence session live~session"),
]  # fmt: skip
PYTEST_ONLY_IN = {"session", "live session", "report", "plugin"}
# Programs of their own, run by their path.
ALONE = {"sse.py", "guard.py", "embedded_main.py"}


def name_of(path: Path) -> str:
    """Its path below the package, without the suffix: a package's own is that of its folder."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def area_of(name: str) -> tuple[str, set[str]]:
    """(the area of a module, what it may import). Raises StopIteration where it has no place."""
    return next(
        (area, {area, *(word.replace("~", " ") for word in may.split())})
        for area, patterns, may in AREAS
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split())
    )


def imports(path: Path) -> list[tuple[str, bool]]:
    """(name, whether of this package) of every import outside TYPE_CHECKING: of ours the module's
    path, of others the top name."""
    found: list[tuple[str, bool]] = []
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
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] / (node.module or "").replace(".", "/")
            for name in node.names:
                inner = folder / f"{name.name}.py"
                module = inner if inner.exists() else folder.with_suffix(".py")
                found.append((name_of(module if module.exists() else folder / "__init__.py"), True))
    return found


def modules() -> list[tuple[str, Path]]:
    """(area, path) of all."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(area_of(name_of(path))[0], path) for path in paths]


def test_every_module_has_its_area_and_imports_what_that_may() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        area, may = area_of(name_of(path))
        for imported, ours in imports(path):
            if ours and imported != "__init__":  # (its version)
                assert {area_of(imported)[0], imported} & may, f"{path} ({area}): {imported}"


def test_no_area_is_imported_by_one_that_it_imports() -> None:
    below = {area: {word.replace("~", " ") for word in may.split()} for area, _, may in AREAS}
    for area, may in below.items():
        assert not [one for one in may if area in below.get(one, ())], area


def test_no_step_knows_another() -> None:
    """Only the report has the numbers of others."""
    for path in sorted((PACKAGE / "steps").glob("*/*.py")):
        for imported, ours in imports(path):
            parts = imported.split("/")
            if ours and parts[0] == "steps" and len(parts) == 3 and path.parent.name != "report":
                assert parts[1] == path.parent.name, f"{path} imports {imported}"


def test_imports_run_one_way() -> None:
    below = {name_of(path): {n for n, ours in imports(path) if ours} for _, path in modules()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' -> '.join((*above, name))}"
        if name not in done:
            for one in below[name] - {name}:
                visit(one, (*above, name))
            done.add(name)

    for name in below:
        if name != "__init__":
            visit(name, ())


# The program that is copied out.
LONG = {"sse": 930}


def test_no_module_is_long() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= LONG.get(name_of(path), 300), f"{path}: {lines} lines"


def test_a_grading_loads_nothing_that_opens_a_socket() -> None:
    program = (
        "import sys; import pytest_llm_latency.session.grade; "
        "import pytest_llm_latency.report.story; "
        "print({'requests', 'urllib3'} & set(sys.modules), "
        "'pytest_llm_latency.wire.connections' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": ""},
    )
    assert done.stdout.strip() == "set() False"


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
