"""What a llama.cpp server's log says about a cancelled task. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What stands around these words changed between versions; the words did not.
_LAUNCHED = b"processing task"
_CANCELLED = b"cancel task"
LINE_BYTES_SHOWN = 1_000  # it goes into run.json
# "task 7 | processing task", "cancel task, id_task = 7", and in JSON lines "id_task":7.
_NUMBERS = (re.compile(rb"task (\d+) \| processing task"), re.compile(rb'id_task"? ?[=:] ?(\d+)'))


def cancel_line(part: bytes, task: int | None = None) -> str | None:
    """The line that reports the cancel of the task that this part of the log launched: of `task`,
    where it is known.

    A server logs a cancel for a refused request, too: where the part says which tasks it
    launched, only the cancel of one of those counts. None: no such line.
    """
    launched = {number for number, _ in _lines(part, _LAUNCHED)}
    ours = str(task).encode()
    if ours in launched:
        launched = {ours}
    for number, line in _lines(part, _CANCELLED):
        if not launched or number in launched:
            return line[:LINE_BYTES_SHOWN].decode("utf-8", "replace").strip()
    return None


def tells_of_requests(part: bytes) -> bool:
    """Whether it is the log of a llama.cpp server that is at work, and says so."""
    return any(True for _ in _lines(part, _LAUNCHED))


def _lines(part: bytes, words: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(task's number, line) of every line with the words and a number. Each byte is looked at
    a fixed number of times, however long a line is."""
    for line in part.splitlines():
        if words not in line:
            continue
        for pattern in _NUMBERS:
            match = pattern.search(line)
            if match is not None:
                yield match.group(1), line
                break
