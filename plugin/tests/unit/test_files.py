"""No file outside of a run's directory is read, written or deleted, whatever lies in it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llm_latency.errors import ArtifactError, ConfigError
from pytest_llm_latency.evidence import files as files_module
from pytest_llm_latency.evidence.files import Directory
from pytest_llm_latency.evidence.run_directory import WRITTEN, RunDirectory
from pytest_llm_latency.evidence.run_index import FORMAT, MAX_RUN_BYTES, VERSION
from pytest_llm_latency.lab.graded import GradedLab
from pytest_llm_latency.masking import Mask
from pytest_llm_latency.report import MADE_BY, is_page
from pytest_llm_latency.servers.logs import FileLog
from pytest_llm_latency.servers.process import _writable
from pytest_llm_latency.session.grade import GradeSession

MAX_BYTES = 1_000_000
SECRET = b"outside, and not ours\n"
# What hangs (a pipe that is opened) is a failure, not a run without an end.
pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the run's; what is in it must be as it was."""
    directory = tmp_path / "outside"
    (directory / "ttft").mkdir(parents=True)
    for name in ("file", "ttft/1.jsonl", "run.json"):
        (directory / name).write_bytes(SECRET)
    before = sorted(directory.rglob("*"))
    yield directory
    assert sorted(directory.rglob("*")) == before
    assert all(path.read_bytes() == SECRET for path in before if path.is_file())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def sock(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # such a name may not be long
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


# What may lie in a file's place, and what it is called.
ODD: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "a link": ("a link", lambda path, outside: path.symlink_to(outside / "file")),
    "a link in a circle": ("a link", lambda path, outside: path.symlink_to(path)),
    "a link to nothing": ("a link", lambda path, outside: path.symlink_to(outside / "none")),
    "a link inside": ("a link", lambda path, outside: ((path.parent / ".other").write_bytes(b"{}"), path.symlink_to(".other"))),
    "a pipe": ("a pipe", lambda path, outside: os.mkfifo(path)),
    "a directory": ("a directory", lambda path, outside: path.mkdir()),
    "a socket": ("a socket", lambda path, outside: sock(path)),
    "a device": ("a device", lambda path, outside: device(path)),
}  # fmt: skip
NO_NAMES = ("", ".", "..", "../file", "a/../../file", "a/..", "/etc/hostname", "a//b", "a/", "./a", "a\0b", "\ud83d")  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["file", "evidence/ttft/1.jsonl"])
def test_nothing_but_a_regular_file_is_touched(
    run: Path, outside: Path, name: str, odd: str
) -> None:
    kind, make = ODD[odd]
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    make(run / name, outside)
    files = Directory(run)
    found = os.lstat(run / name)
    calls: list[Callable[[], object]] = [
        lambda: files.read(name, MAX_BYTES),
        lambda: files.head(name, 10),
        lambda: files.check(name),
        lambda: files.write({"whole": b"x", name: b"new"}),
        lambda: files.remove(name),
    ]
    for call in calls:
        with pytest.raises(ArtifactError) as error:
            call()
        assert str(error.value).startswith(f"{name}: is {kind}, expected a regular file; ")
        assert os.path.samestat(os.lstat(run / name), found)
        assert not (run / "whole").exists()
    assert files.exists(name)


@pytest.mark.parametrize("name", NO_NAMES)
@pytest.mark.usefixtures("outside")
def test_a_name_that_leads_out_or_is_none(run: Path, name: str) -> None:
    (run / "a").mkdir()
    files = Directory(run)
    calls: list[Callable[[], object]] = [
        lambda: files.read(name, MAX_BYTES),
        lambda: files.write({name: b"new"}),
        lambda: files.remove(name),
        lambda: files.remove_tree(name, ".jsonl"),
        lambda: files.rename("a", name),
        lambda: files.rename(name, "b"),
    ]
    for call in calls:
        with pytest.raises(ArtifactError, match="is not the name of a file in the run's directory"):
            call()
    assert not files.exists(name)
    assert [path.name for path in run.iterdir()] == ["a"]
    # A grading and a run take no run.json with it.
    index = index_with({name: {"run": "x", "step": "ttft", "sha256": ""}})
    (run / "run.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match=r"run.json: expected "):
        GradedLab(run, MAX_BYTES)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 40 + "x"])
def test_a_name_that_is_too_long(run: Path, name: str) -> None:
    for call in (lambda: Directory(run).read(name, 1), lambda: Directory(run).write({name: b""})):
        with pytest.raises(ArtifactError):
            call()
    assert list(run.iterdir()) == []


def test_a_folder_on_the_way_is_no_link(run: Path, outside: Path) -> None:
    (run / "evidence").symlink_to(outside)
    files = Directory(run)
    calls: list[Callable[[], object]] = [
        lambda: files.read("evidence/file", MAX_BYTES),
        lambda: files.write({"evidence/file": b"new"}),
        lambda: files.write({"evidence/new/1.jsonl": b"new"}),
        lambda: files.remove("evidence/file"),
        lambda: files.remove_tree("evidence/ttft", ".jsonl"),
        lambda: files.remove_tree("evidence", ".jsonl"),
        lambda: files.rename("evidence/ttft", "evidence/x"),
        lambda: files.check("evidence/file"),
        lambda: files.check_tree("evidence", ".jsonl"),
    ]
    for call in calls:
        with pytest.raises(ArtifactError, match="evidence: is a link, expected a directory; "):
            call()
    assert not files.exists("evidence/file")


@pytest.mark.parametrize("odd", ODD)
def test_what_is_put_there_after_it_was_looked_at(
    run: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    """The system itself follows no link, and waits for no pipe."""
    monkeypatch.setattr(files_module, "_expect", lambda *_: None)
    ODD[odd][1](run / "file", outside)
    files = Directory(run)
    for call in (lambda: files.read("file", MAX_BYTES), lambda: files.head("file", 10)):
        with pytest.raises(ArtifactError, match="file: "):
            call()
    with contextlib.suppress(ArtifactError):
        files.write({"file": b"new"})
    (run / "evidence").symlink_to(outside)
    for name in ("evidence/ttft/1.jsonl", "evidence/file"):
        with pytest.raises(ArtifactError, match=f"{name}: cannot be read: "):
            files.read(name, MAX_BYTES)
        with pytest.raises(ArtifactError, match="cannot write "):
            files.write({name: b"new"})
    with pytest.raises(ArtifactError, match="cannot write "):
        files.remove_tree("evidence", ".jsonl")
    (run / ".lock").symlink_to(outside / "lock")
    with pytest.raises(OSError, match="Too many levels"):
        files.lock(".lock")


@pytest.mark.parametrize("name", ["file", "deep/below/file"])
def test_a_file_is_whole_or_not_there(run: Path, name: str) -> None:
    files = Directory(run)
    files.write({name: b"old", "other": b"old"})
    (run / "blocked").mkdir()
    with pytest.raises(ArtifactError, match="blocked: is a directory"):
        files.write({name: b"new", "other": b"new", "blocked": b"new"})
    assert (files.read(name, 3), files.read("other", 3)) == (b"old", b"old")
    with pytest.raises(ArtifactError, match=f"{name}: 3 bytes are more than 2"):
        files.read(name, 2)
    files.remove(name)
    files.remove(name)
    with pytest.raises(ArtifactError, match=f"{name}: is missing"):
        files.read(name, 3)
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize(
    "odd", ["a link", "a link in a circle", "a pipe", "a socket", "another name"]
)
def test_what_lies_where_a_part_is_written_is_not_written_into(
    run: Path, outside: Path, odd: str
) -> None:
    part = run / ".ttft.json.part"
    if odd == "another name":
        os.link(outside / "file", part)
    else:
        ODD[odd][1](part, outside)
    Directory(run).write({"ttft.json": b"new"})
    assert (run / "ttft.json").read_bytes() == b"new"
    assert not os.path.lexists(part)


def test_a_file_known_elsewhere_by_another_name_keeps_what_it_has(run: Path, outside: Path) -> None:
    for name in ("ttft.json", ".lock", ".server.log"):
        os.link(outside / "file", run / name)
    Directory(run).write({"ttft.json": b"new"})
    with _writable(run / ".server.log") as log:
        log.write(b"new")
    one = RunDirectory(run, {})
    one.remove(".server.log")
    one.close()


def test_a_tree_goes_whole_or_not_at_all(run: Path, outside: Path) -> None:
    files = Directory(run)
    files.write({"evidence/a/1.jsonl": b"", "evidence/a/b/.2.jsonl.part": b""})
    (run / "evidence" / "a" / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(ArtifactError, match=r"evidence/a/photo.jpg: is no file of a run; move it"):
        files.remove_tree("evidence/a", ".jsonl")
    (run / "evidence" / "a" / "photo.jpg").unlink()
    (run / "evidence" / "a" / "b" / "x.jsonl").symlink_to(outside / "file")
    with pytest.raises(ArtifactError, match=r"evidence/a/b/x.jsonl: is a link"):
        files.remove_tree("evidence/a", ".jsonl")
    assert (run / "evidence" / "a" / "1.jsonl").exists()
    (run / "evidence" / "a" / "b" / "x.jsonl").unlink()
    files.remove_tree("evidence/a", ".jsonl")
    files.remove_tree("evidence/a", ".jsonl")
    assert list((run / "evidence").iterdir()) == []
    (run / "/".join(["deep"] * 40)).mkdir(parents=True)
    with pytest.raises(ArtifactError, match="is a directory, expected a regular file"):
        files.remove_tree("deep", ".jsonl")


def test_the_directory_itself_may_be_a_link(tmp_path: Path, run: Path) -> None:
    (tmp_path / "link").symlink_to("run")
    Directory(tmp_path / "link").write({"a/b": b"x"})
    assert Directory(tmp_path / "link").read("a/b", 9) == (run / "a" / "b").read_bytes() == b"x"
    one = RunDirectory(tmp_path / "link", {})
    one.write("ttft.json", "{}", "ttft")
    one.save()
    one.close()
    assert GradedLab(tmp_path / "link", MAX_BYTES).run_of("ttft") is None


# --- a run ---


def index_with(artifacts: dict[str, Any], **more: Any) -> dict[str, Any]:
    sections = {"runs": {"x": {}}, "steps": {}, "failures": {}, "artifacts": artifacts}
    return {"format": "pytest-llm-latency/run", "version": 1, "run": "x", **sections, **more}


PLACES = ("run.json", ".run.json.part", ".server.log", ".lock", "ttft.json", "server.log")
FOLDERS = ("evidence", "evidence/ttft", "evidence/ttft.new", "evidence/ttft.failed")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", PLACES)
def test_a_run_is_refused_where_something_else_lies(
    run: Path, outside: Path, place: str, odd: str
) -> None:
    """At its start, by a sentence with the option, the place and what is there; it stays there."""
    kind, make = ODD[odd]
    make(run / place, outside)
    found = os.lstat(run / place)
    with pytest.raises(ConfigError) as error:
        RunDirectory(run, {}, "--llm-artifacts")
    sentence = f"--llm-artifacts: {run}: {place}: is {kind}, expected a regular file; "
    assert str(error.value).startswith(sentence)
    assert os.path.samestat(os.lstat(run / place), found)


@pytest.mark.parametrize("odd", [*ODD, "a file"])
@pytest.mark.parametrize("place", FOLDERS)
def test_a_run_is_refused_where_its_evidence_is_elsewhere(
    run: Path, outside: Path, place: str, odd: str
) -> None:
    if odd == "a directory":
        (run / place).mkdir(parents=True)
        RunDirectory(run, {}).close()
        return
    (run / place).parent.mkdir(exist_ok=True)
    make = ODD[odd][1] if odd in ODD else lambda path, outside: path.write_bytes(b"mine")
    make(run / place, outside)
    with pytest.raises(ConfigError, match=f"{place}: is "):
        RunDirectory(run, {})
    assert os.path.lexists(run / place)


def test_every_file_that_a_run_writes_is_looked_at(run: Path, outside: Path) -> None:
    for name in WRITTEN:
        (run / name).symlink_to(outside / "file")
        with pytest.raises(ConfigError, match=f"{name}: is a link"):
            RunDirectory(run, {})
        (run / name).unlink()
    RunDirectory(run, {}).close()


@pytest.mark.usefixtures("outside")
def test_what_run_json_names_is_removed_only_where_it_is_what_a_run_wrote(run: Path) -> None:
    one = RunDirectory(run, {})
    one.begin_step("server")
    for name in ("health.json", "props.json", "mine/deep.json"):
        one.write(name, "{}", "server")
    one.commit_step("server")
    one.save()
    one.close()
    (run / "props.json").write_text("edited")
    (run / "link").symlink_to("../outside")
    index = json.loads((run / "run.json").read_text())
    for name in ("link/file", "thesis.txt"):
        index["artifacts"][name] = index["artifacts"]["health.json"] | {"sha256": ""}
    (run / "run.json").write_text(json.dumps(index))
    (run / "thesis.txt").write_text("mine")
    again = RunDirectory(run, {})
    again.begin_step("server")
    again.commit_step("server")
    again.close()
    assert again.names("server") == []
    assert not (run / "health.json").exists()
    assert not (run / "mine" / "deep.json").exists()
    assert (run / "props.json").read_text() == "edited"
    assert (run / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [name for name in NO_NAMES if name])
@pytest.mark.usefixtures("outside")
def test_an_own_test_writes_into_the_directory_alone(run: Path, name: str) -> None:
    one = RunDirectory(run, {})
    with pytest.raises(ArtifactError):
        one.write(name, "x", "own")
    with pytest.raises(ArtifactError):
        one.keep_text(f"../{name}", "x")
    one.save()
    one.close()
    assert not (run.parent / "x").exists()
    RunDirectory(run, {}).close()
    assert not list(run.glob("run.json.before*"))


def test_a_step_that_could_not_begin_leaves_what_was_measured(run: Path) -> None:
    one = RunDirectory(run, {})
    assert not one.keep_earlier("own", "no server")
    one.add_verdicts("own", [{"outcome": "holds"}])
    one.finish_step("own", outcome="passed")
    assert not one.keep_earlier("own", "of this run")
    one.save()
    one.close()
    again = RunDirectory(run, {})
    assert again.keep_earlier("own", "no server" + "x" * 20_000)
    again.save()
    index = json.loads((run / "run.json").read_text())
    assert index["steps"]["own"]["run"] == one.run_id
    assert index["failures"]["own"]["run"] == again.run_id
    assert index["failures"]["own"]["error"].startswith("no server")
    assert len(index["failures"]["own"]["error"]) == 10_000
    again.finish_step("own", outcome="passed")  # it ran again
    again.save()
    again.close()
    index = json.loads((run / "run.json").read_text())
    assert (index["steps"]["own"]["run"], index["failures"]) == (again.run_id, {})


def test_the_evidence_of_an_own_test_begins_anew(run: Path) -> None:
    for label in ("own/1", "own/2"):
        one = RunDirectory(run, {})
        one.keep_text(f"{label}.jsonl", "{}")
        one.save()
        one.close()
        assert [str(path.relative_to(run / "evidence")) for path in run.rglob("*.jsonl")] == [
            f"{label}.jsonl"
        ]
        assert one.names("own") == [f"evidence/{label}.jsonl"]


OF_OURS = json.dumps(index_with({}))
NO_INDEX = {
    "not JSON": "{",
    "a list": "[]",
    "another tool's": '{"entry_point": "x"}',
    "of a later version": OF_OURS.replace('"version": 1', '"version": 2'),
    "nested": OF_OURS.replace('{"x": {}}', '{"x": {"a": ' + "[" * 300 + "]" * 300 + "}}"),
    "nested without end": "[" * 1_000_000,
    "a number of 5,000 digits": OF_OURS.replace('"x": {}', '"x": {"a": ' + "9" * 5_000 + "}"),
    "not UTF-8": "\udcff\udcfe",
}


@pytest.mark.parametrize("content", NO_INDEX.values(), ids=NO_INDEX)
def test_a_run_json_that_is_none_is_kept_beside(run: Path, content: str) -> None:
    data = content.encode("utf-8", "surrogateescape")
    (run / "run.json").write_bytes(data)
    one = RunDirectory(run, {})
    one.save()
    one.close()
    assert [path.read_bytes() for path in run.glob("run.json.before-*")] == [data]
    assert json.loads((run / "run.json").read_text())["run"] == one.run_id


@pytest.mark.parametrize("odd", ["NaN", "1e999", "-Infinity", '"\\ud83d"', "-0.0"])
def test_an_odd_value_in_a_run_json_is_no_traceback(run: Path, odd: str) -> None:
    entry = f'{{"run": "x", "outcome": {odd}}}'
    (run / "run.json").write_text(OF_OURS.replace('"steps": {}', f'"steps": {{"ttft": {entry}}}'))
    one = RunDirectory(run, {})
    one.save()
    one.close()
    # What cannot be written again is kept as it was.
    found = [run / "run.json", *run.glob("run.json.before-*")]
    assert any("ttft" in json.loads(path.read_text())["steps"] for path in found)


def test_a_run_json_of_a_gigabyte(run: Path) -> None:
    with (run / "run.json").open("wb") as file:
        file.truncate(1 << 30)
    words = f"run.json: 1,073,741,824 bytes are more than {MAX_RUN_BYTES:,}"
    with pytest.raises(ConfigError, match=words):
        RunDirectory(run, {})
    with pytest.raises(ArtifactError, match=words):
        GradedLab(run, MAX_BYTES)
    assert (run / "run.json").stat().st_size == 1 << 30


def test_a_second_run_is_refused_and_the_first_goes_on(run: Path) -> None:
    one = RunDirectory(run, {})
    with pytest.raises(ConfigError, match="another run is using"):
        RunDirectory(run, {})
    one.save()
    one.close()
    RunDirectory(run, {}).close()


@pytest.mark.parametrize(
    ("took_s", "saved"), [(0.01, [True, True, True]), (0.12, [False, False, True])]
)
def test_saving_takes_a_tenth_of_the_time_at_most(
    run: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, saved: list[bool]
) -> None:
    """But each time where it is cheap, as it is with the lab's eight steps."""
    clock = [1_000.0]
    monkeypatch.setattr("pytest_llm_latency.evidence.run_directory.now", lambda: clock[0])
    write, written = Directory.write, []

    def slow(files: Directory, contents: dict[str, bytes]) -> None:
        clock[0] += took_s
        written.append(contents)
        write(files, contents)

    monkeypatch.setattr(Directory, "write", slow)
    one = RunDirectory(run, {})
    one.save_soon()
    found = []
    for _ in range(3):
        clock[0] += 0.4
        before = len(written)
        one.save_soon()
        found.append(len(written) > before)
    assert (found, len(written) > 1) == (saved, True)
    one.close()


def test_a_full_disk_leaves_what_was_there(run: Path) -> None:
    one = RunDirectory(run, {})
    one.begin_step("ttft")
    one.write("ttft.json", "{}", "ttft")
    one.write("evidence/ttft/1.jsonl", "{}", "ttft")
    one.commit_step("ttft")
    one.save()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        one.begin_step("ttft")
        one.write("evidence/ttft/1.jsonl", "{}", "ttft")
        one.write("ttft.json", "x" * 1_000, "ttft")
        with pytest.raises(ArtifactError, match=r"cannot write .*/ttft.json: File too large"):
            one.commit_step("ttft")
        one.fail_step("ttft", "the disk is full")
        with pytest.raises(ArtifactError, match=r"cannot write .*/run.json: File too large"):
            one.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert [path.relative_to(run) for path in after.keys() - before.keys()] == [
        Path("evidence/ttft.failed/1.jsonl")
    ]
    one.close()


# --- a grading, and the page ---


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["run.json", "ttft.json"])
def test_a_grading_reads_nothing_else(run: Path, outside: Path, name: str, odd: str) -> None:
    kind, make = ODD[odd]
    make(run / name, outside)
    with pytest.raises(ArtifactError, match=f"^{name}: is {kind}, expected a regular file; "):
        GradedLab(run, MAX_BYTES).ttft()


@pytest.mark.parametrize("odd", ODD)
def test_a_page_is_a_regular_file(run: Path, outside: Path, odd: str) -> None:
    kind, make = ODD[odd]
    make(run / "report.html", outside)
    with pytest.raises(ArtifactError, match=f"report.html: is {kind}"):
        is_page(run / "report.html")
    (run / "page.html").write_text(MADE_BY)
    assert is_page(run / "page.html")


def test_a_log_is_a_regular_file(run: Path, outside: Path) -> None:
    os.mkfifo(run / "log")
    for call in (FileLog(run / "log", "--llm-log").size, lambda: FileLog(run / "log", "").read(0)):
        with pytest.raises(ConfigError, match="log is not a regular file"):
            call()
    (run / "link").symlink_to(outside / "file")  # its user may name a link
    log = FileLog(run / "link", "--llm-log")
    assert (log.size(), log.read(1)) == (len(SECRET), SECRET[1:])


def test_a_grading_reads_the_log_that_its_user_names_by_a_link(run: Path, outside: Path) -> None:
    (run / "link").symlink_to(outside / "file")
    settings = SimpleNamespace(log=run / "link", sources={"log": "--llm-log"}, file_bytes=MAX_BYTES)
    session: Any = SimpleNamespace(settings=settings, mask=Mask(()))
    assert GradeSession._log(session) == SECRET


def test_the_log_of_our_own_server_is_a_new_file(run: Path, outside: Path) -> None:
    (run / ".server.log").symlink_to(outside / "file")
    with _writable(run / ".server.log") as log:
        log.write(b"new")
    assert (run / ".server.log").read_bytes() == b"new"


def test_a_run_json_of_many_tests_is_kept(run: Path) -> None:
    """Beyond what is read of a server: it is our own file."""
    steps = {f"test_{number}.py::test_it[{'x' * 500}]": {"run": "a"} for number in range(9_000)}
    index = {"format": FORMAT, "version": VERSION, "run": "a", "runs": {"a": {}}, "steps": steps, "failures": {}, "artifacts": {}}  # fmt: skip
    (run / "run.json").write_text(json.dumps(index))
    assert (run / "run.json").stat().st_size > 4 * 1024 * 1024
    directory = RunDirectory(run, {})
    directory.save()
    directory.close()
    assert len(json.loads((run / "run.json").read_text())["steps"]) == 9_000


def test_a_note_before_the_first_recording_leaves_no_earlier_evidence(run: Path) -> None:
    for labels, noted in ((("look/1", "look/2"), False), (("look/1",), True)):
        directory = RunDirectory(run, {})
        if noted:
            directory.note("look", "the server wanted to be waited for")
        for label in labels:
            directory.keep_text(f"{label}.jsonl", "{}")
        directory.save()
        directory.close()
    assert [path.name for path in (run / "evidence" / "look").iterdir()] == ["1.jsonl"]
    index = json.loads((run / "run.json").read_text())
    assert list(index["artifacts"]) == ["evidence/look/1.jsonl"]


def test_a_thread_that_outlives_its_step_writes_nothing(run: Path) -> None:
    directory = RunDirectory(run, {})
    directory.begin_step("cancel")
    directory.fail_step("cancel", "interrupted")
    directory.keep_text("cancel/late.jsonl", "{}")
    directory.save()
    directory.close()
    assert not (run / "evidence" / "cancel").exists()
    assert json.loads((run / "run.json").read_text())["artifacts"] == {}
