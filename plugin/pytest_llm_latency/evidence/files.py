"""The files below one directory, and nothing outside of it.

The directory itself is named by its user, who may name a link. What lies below it may come from
anywhere: every part of a name is opened by the descriptor of the directory that it lies in, no link
is followed, and nothing but a regular file is read. So no link, no name and no pipe in it leads
elsewhere, or keeps anybody waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import ArtifactError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# Should it have become a pipe or a terminal since it was looked at: not waited for, nor taken over.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_DEEPEST = 16


def parts_of(name: str) -> list[str]:
    """The parts of a file's name. Raises ArtifactError where it may lead out of the directory, or
    can be no name."""
    parts = name.split("/")
    try:
        is_name = b"\0" not in os.fsencode(name) and len(parts) <= _DEEPEST
    except UnicodeEncodeError:  # half a surrogate pair
        is_name = False
    if not is_name or {"", ".", ".."}.intersection(parts):
        raise ArtifactError(f"{name[:80]!r} is not the name of a file in the run's directory")
    return parts


class Directory:
    """Reads and writes the files of one directory. Raises ArtifactError."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def exists(self, name: str) -> bool:
        """Whether there is anything of this name, be it readable or not."""
        with contextlib.suppress(OSError, ArtifactError), self._place(name) as (folder, last):
            os.stat(last, dir_fd=folder, follow_symlinks=False)
            return True
        return False

    def names(self) -> list[str]:
        """What lies in the directory itself; nothing where it cannot be read."""
        try:
            return os.listdir(self.path)
        except OSError:
            return []

    def check(self, name: str) -> None:
        """Raise ArtifactError where something else than a regular file has the name."""
        with (
            _reading(name),
            contextlib.suppress(FileNotFoundError),
            self._place(name) as (folder, last),
        ):
            _expect("a regular file", folder, last, name)

    def check_tree(self, name: str, suffix: str) -> None:
        """Raise ArtifactError where anything else than directories and files with this suffix (or
        hidden ones) lies below a directory, which may be missing."""
        with (
            _reading(name),
            contextlib.suppress(FileNotFoundError),
            self._place(name) as (folder, last),
        ):
            _check_tree(folder, last, name, suffix)

    def read(self, name: str, limit: int) -> bytes:
        """All bytes of a file that has no more than `limit`."""
        with self._opened(name) as file:
            size = os.fstat(file).st_size
            if size > limit:
                raise ArtifactError(f"{name}: {size:,} bytes are more than {limit:,}")
            return _read(file, size)

    def head(self, name: str, size: int) -> bytes:
        """The first `size` bytes of a file."""
        with self._opened(name) as file:
            return _read(file, size)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write the files whole or not at all: all beside their places first, then renamed. Where
        it raises, none of them has changed, unless a rename failed: then those before it have."""
        parts: list[tuple[int, str, str]] = []
        with contextlib.ExitStack() as stack:
            try:
                for name, content in files.items():
                    stack.enter_context(_writing(self.path / name))
                    self.path.mkdir(parents=True, exist_ok=True)
                    folder, last = stack.enter_context(self._place(name, make=True))
                    with contextlib.suppress(FileNotFoundError):
                        _expect("a regular file", folder, last, name)
                    parts.append((folder, f".{last}.part", last))
                    _write_new(folder, f".{last}.part", content)
                for folder, part, last in parts:
                    os.replace(part, last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                for folder, part, _ in parts:
                    with contextlib.suppress(OSError):
                        os.unlink(part, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a regular file, which may be missing."""
        with (
            _writing(self.path / name),
            contextlib.suppress(FileNotFoundError),
            self._place(name) as (folder, last),
        ):
            _expect("a regular file", folder, last, name)
            os.unlink(last, dir_fd=folder)

    def remove_tree(self, name: str, suffix: str) -> None:
        """Remove a directory, which may be missing; nothing of one that `check_tree` refuses."""
        with (
            _writing(self.path / name),
            contextlib.suppress(FileNotFoundError),
            self._place(name) as (folder, last),
        ):
            _check_tree(folder, last, name, suffix)
            _remove_tree(folder, last, name)

    def rename(self, old: str, new: str) -> None:
        """Give a file or a directory another name in the same place."""
        with _writing(self.path / new), self._place(old) as (folder, last):
            os.rename(last, parts_of(new)[-1], src_dir_fd=folder, dst_dir_fd=folder)

    def lock(self, name: str) -> int:
        """The descriptor of a file that no other process can lock until it is closed. Raises
        BlockingIOError where another one has, OSError where it cannot be made."""
        with self._place(name) as (folder, last):
            with contextlib.suppress(FileNotFoundError):
                _expect("a regular file", folder, last, name)
            lock = os.open(last, os.O_RDWR | os.O_CREAT | _FILE, 0o666, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        return lock

    @contextlib.contextmanager
    def _place(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """(the descriptor of the directory that the file lies in, its name there)."""
        *folders, last = parts_of(name)
        folder = os.open(self.path, _FOLDER)
        try:
            for number, part in enumerate(folders, 1):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = _open_folder(folder, part, "/".join(folders[:number]))
                os.close(folder)
                folder = inner
            yield folder, last
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with _reading(name):
            try:
                with self._place(name) as (folder, last):
                    _expect("a regular file", folder, last, name)
                    file = os.open(last, os.O_RDONLY | _FILE, dir_fd=folder)
            except FileNotFoundError:
                raise ArtifactError(f"{name}: is missing") from None
            try:
                _expect_of(os.fstat(file).st_mode, "a regular file", name)
                yield file
            finally:
                os.close(file)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Errors of the system in words."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{name}: cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Errors of the system in words; a full disk's names no file."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror}") from None


def _expect(expected: str, folder: int, part: str, name: str) -> None:
    """Raise ArtifactError where something else is there, FileNotFoundError where nothing is."""
    _expect_of(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode, expected, name)


def _expect_of(mode: int, expected: str, name: str) -> None:
    found = _kind(mode)
    if found == "a link":
        raise ArtifactError(
            f"{name}: is a link, expected {expected}; no link is followed: put what it points to "
            "in its place"
        )
    if found != expected:
        raise ArtifactError(f"{name}: is {found}, expected {expected}; move it away")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def _open_folder(folder: int, part: str, name: str) -> int:
    _expect("a directory", folder, part, name)
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _read(file: int, size: int) -> bytes:
    with os.fdopen(os.dup(file), "rb") as whole:
        return whole.read(size)


def _write_new(folder: int, name: str, content: bytes) -> None:
    """Never into a file that is there: it may be known elsewhere by another name."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _check_tree(folder: int, part: str, name: str, suffix: str) -> None:
    inner = _open_folder(folder, part, name)
    try:
        for one in sorted(os.listdir(inner)):
            where = f"{name}/{one}"
            kind = _kind(os.stat(one, dir_fd=inner, follow_symlinks=False).st_mode)
            if kind == "a directory" and where.count("/") < _DEEPEST:
                _check_tree(inner, one, where, suffix)
            else:
                _expect("a regular file", inner, one, where)
                if not one.endswith(suffix) and not one.startswith("."):
                    raise ArtifactError(f"{where}: is no file of a run; move it away")
    finally:
        os.close(inner)


def _remove_tree(folder: int, part: str, name: str) -> None:
    inner = _open_folder(folder, part, name)
    try:
        for one in os.listdir(inner):
            if _kind(os.stat(one, dir_fd=inner, follow_symlinks=False).st_mode) == "a directory":
                _remove_tree(inner, one, f"{name}/{one}")
            else:
                os.unlink(one, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(part, dir_fd=folder)
