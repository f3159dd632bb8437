"""What a llama.cpp server's log says about a cancelled task. Pure."""

from __future__ import annotations

import re

# What stands before these words changed between versions; the words did not. In JSON lines the
# number has a key of its own.
_LAUNCHED = re.compile(
    rb'task (\d+) \| processing task|processing task[^\r\n]*"id_task"\s*:\s*(\d+)'
)
_CANCELLED = re.compile(
    rb'[^\r\n]*cancel task(?:, id_task = |[^\r\n]*"id_task"\s*:\s*)(\d+)[^\r\n]*'
)


def cancel_line(part: bytes) -> str | None:
    """The line that reports the cancel of the task that this part of the log launched.

    A server logs a cancel for a refused request, too: where the part says which tasks it
    launched, only the cancel of one of those counts. None: no such line.
    """
    launched = {match.group(1) or match.group(2) for match in _LAUNCHED.finditer(part)}
    for match in _CANCELLED.finditer(part):
        if not launched or match.group(1) in launched:
            return match.group().decode("utf-8", "replace").strip()
    return None
