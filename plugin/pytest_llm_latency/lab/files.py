"""Reads the files of a directory for grading, bounded, and nothing outside it."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from ..errors import ArtifactError
from ..evidence import artifacts
from ..evidence.artifacts import CHUNKS, Chunk, check, parse
from ..evidence.files import Directory
from ..evidence.run_directory import SERVER_LOG
from ..evidence.run_index import MAX_RUN_BYTES, RUN_FILE
from ..evidence.strictjson import load_json
from ..steps.checks import FILES_OF

# Files that hold what a server says, however much that is; all others are small.
STREAMS = ("sse_raw.txt", ".jsonl", SERVER_LOG, "health.json", "props.json", "sentence.json")
MAX_SMALL_BYTES = 4 * 1024 * 1024
OURS = ("salt", "changed_suffix")


class Files:
    """Reads files of one directory, and nothing outside it. Raises ArtifactError."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._files = Directory(directory)
        self.exists = self._files.exists
        self._max_bytes = max_bytes

    def near(self, name: str) -> str | None:
        """A file with nearly this name, in its place; None: there is none."""
        known = {one for names in FILES_OF.values() for one in names}
        close = difflib.get_close_matches(name, set(self._files.names()) - known, 1, 0.75)
        return close[0] if close else None

    def read_bytes(self, name: str) -> bytes:
        """All bytes of a regular file of bounded size that lies in the directory."""
        limit = self._max_bytes if name.endswith(STREAMS) else MAX_SMALL_BYTES
        return self._files.read(name, MAX_RUN_BYTES if name == RUN_FILE else limit)

    def read_text(self, name: str) -> str:
        """The text of a UTF-8 file; a leading byte order mark is dropped."""
        try:
            return self.read_bytes(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            how = f"is not UTF-8 at byte {error.start}"
            if self.read_bytes(name).startswith((b"\xff\xfe", b"\xfe\xff")):
                how = "is UTF-16 (PowerShell's >); save it as UTF-8"
            raise ArtifactError(f"{name}: {how}") from None

    def parse(self, name: str) -> Any:
        """The checked artifact."""
        return parse(artifacts.FILES[name], self.read_text(name), name)

    def parse_by_hand(self, name: str) -> Any:
        """The checked artifact, keys of ours that the contract does not have left out."""
        value = load_json(self.read_text(name), name)
        rows = value if isinstance(value, list) else [value]
        for row in rows:
            if isinstance(row, dict):
                for key in OURS:
                    row.pop(key, None)
        return check(artifacts.FILES[name], value, name)

    def difference(self, name: str, expected: bytes) -> str | None:
        """What a file has that it should not have; None: nothing. JSON may be written otherwise,
        but what a server sent is often no JSON that can be read and written again."""
        found = self.read_bytes(name)
        if found == expected:
            return None
        if not name.endswith(".json"):
            return f"{name}: differs from the recorded bytes"
        text = expected.decode("utf-8", "replace")
        return first_difference(load_json(self.read_text(name), name), load_json(text, name), name)

    def chunks(self) -> tuple[Chunk, ...]:
        """The lines of chunks.jsonl, checked."""
        chunks = []
        for number, line in enumerate(self.read_text(CHUNKS).split("\n"), 1):
            if line.strip():
                chunks.append(parse(Chunk, line, f"{CHUNKS}:{number}"))
        return tuple(chunks)


def first_difference(found: Any, expected: Any, where: str) -> str | None:
    """Where two pieces of JSON data first differ, with both values; None: nowhere."""
    try:
        return _difference(found, expected, where)
    except RecursionError:
        return f"{where}: is nested too deeply to be compared"


def _difference(found: Any, expected: Any, where: str) -> str | None:
    if type(found) is not type(expected):
        return f"{where}: {json.dumps(found)[:60]}, expected {json.dumps(expected)[:60]}"
    if isinstance(found, dict):
        for key in dict.fromkeys([*expected, *found]):
            if key not in found or key not in expected:
                return f"{where}: the key {key!r} is {'missing' if key in expected else 'extra'}"
            difference = _difference(found[key], expected[key], f"{where}.{key}")
            if difference is not None:
                return difference
        return None
    if isinstance(found, list):
        if len(found) != len(expected):
            return f"{where}: {len(found)} entries, expected {len(expected)}"
        for number, (one, other) in enumerate(zip(found, expected)):
            difference = _difference(one, other, f"{where}[{number}]")
            if difference is not None:
                return difference
        return None
    if found == expected or (found != found and expected != expected):  # NaN
        return None
    return f"{where}: {json.dumps(found)[:60]}, expected {json.dumps(expected)[:60]}"
