"""Checks of the sse step's files where they were made by hand. Pure."""

from __future__ import annotations

from ..by_hand import Given, Problem, in_seconds, server_time_ms


def each_has_its_moment(given: Given) -> Problem:
    chunks = given.chunks or ()
    times = [chunk.t_ms for chunk in chunks]
    if len(times) > 3 and len(set(times)) == 1:
        return (
            "stamped-late",
            f"chunks.jsonl: all {len(times)} t_ms are {times[0]:.6g}; expected the moment of each "
            "piece, because pieces come one after the other: stamp each line when it is read",
        )
    if times and times[0] == 0:
        return (
            "wrong-start",
            "chunks.jsonl: the first t_ms is 0, expected the time from the request to the first "
            "piece: the clock starts just before the request is sent, not at the first piece",
        )
    return None


def stream_unit(given: Given) -> Problem:
    server_ms, chunks = server_time_ms(given.stream), given.chunks
    if server_ms is None or not chunks:
        return None
    last_ms, because = chunks[-1].t_ms, "the timings in sse_raw.txt say prompt_ms + predicted_ms"
    problem = in_seconds("chunks.jsonl: the last t_ms", last_ms, server_ms, because)
    if problem is None and last_ms < server_ms / 2:
        return (
            "before-the-server",
            f"chunks.jsonl: the last t_ms is {last_ms:.6g}, expected at least {server_ms / 2:.6g}, "
            f"because {because} = {server_ms:.6g}: the answer cannot be complete before it is made",
        )
    return problem
