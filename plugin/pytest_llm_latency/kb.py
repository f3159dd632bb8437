"""Reads the knowledge base: a directory of Markdown files, in name order."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigError

DOCUMENTS_AT_LEAST = 12


def read(directory: Path, source: str) -> tuple[str, ...]:
    """The texts of `directory`/*.md by name, surrounding blank lines removed.

    Raises ConfigError that names `source` (the option) for a directory that is missing, holds
    fewer than twelve documents, or a document that is empty or not UTF-8.
    """
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigError(f"{source}: the knowledge base {directory} {what}")
    paths = sorted(directory.glob("*.md"), key=lambda path: path.name)
    if len(paths) < DOCUMENTS_AT_LEAST:
        raise ConfigError(
            f"{source}: {directory} has {len(paths)} *.md files; the lab needs at least "
            f"{DOCUMENTS_AT_LEAST}"
        )
    return tuple(_read(path, source) for path in paths)


def _read(path: Path, source: str) -> str:
    if not path.is_file():
        raise ConfigError(f"{source}: {path} is not a regular file")
    try:
        text = path.read_bytes().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source}: {path} is not UTF-8 (byte {error.object[error.start]:#04x} at offset "
            f"{error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot read {path}: {error.strerror}") from None
    if not text:
        raise ConfigError(f"{source}: {path} is empty")
    return text
