"""The raw stream of a file, read a second way than by the decoder that it checks. Pure."""

from __future__ import annotations

import re

from ... import sse


def raw_contents(raw: bytes) -> list[str]:
    """The text of every event; deliberately not by the decoder that made the pieces, which this
    would then never find at fault."""
    found = []
    for block in raw_blocks(raw):
        event = _raw_event(block)
        if sse.is_done(event):
            break
        try:
            value = sse.chunk_of(event)
        except sse.StreamFailure:
            break
        if value is not None:
            found.append(value)
    return sse.added(list(map(sse.said, sse.renumbered(found))))


def raw_blocks(raw: bytes) -> list[str]:
    """The events of a raw stream, as lines joined by newlines; a blank line ends each."""
    text = raw.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return [block for block in re.split("\n{2,}", text.strip("\n")) if block]


def by_events(raw: bytes) -> bytes:
    """A raw stream in which a blank line ends every event: a file made by hand may lack some, and
    each of its lines that is an event's data by itself is an event."""
    events: list[str] = []
    for block in raw_blocks(raw):
        events += block.split("\n") if _is_several(_raw_event(block)) else [block]
    return "".join(event + "\n\n" for event in events).encode()


def _is_several(event: sse.Event) -> bool:
    try:
        sse.chunk_of(event)
    except sse.NoBlankLines:
        return True
    except sse.StreamFailure:
        return False
    return False


def _raw_event(block: str) -> sse.Event:
    fields: dict[str, list[str]] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    data = [*fields.get("data", ()), *fields.get("error", ())]
    kind = "error" if "error" in fields else fields.get("event", [""])[-1]
    return sse.Event("\n".join(data), kind or "message")
