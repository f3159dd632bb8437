"""What no recording of an exchange can say: of its clock, its connection, and of another's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise

from .. import sse
from ..evidence.recording import READING, Recording
from ..plan import salt_of
from ..steps.cancel.legs import is_close
from ..steps.legs import LONGER, SALTED
from .evidence import Evidence, Run, file_of, is_streamed, lab_step

# What came with the head is stamped before the head is parsed; a thread may wait for a core there.
HEAD_PARSED_MS = 100.0
CPU_WAIT_SLACK_MS = 1000.0
# Streams of so many arrivals never agree in all their distances to the microsecond.
ARRIVALS_TOLD_APART = 5
ANSWERED = range(100, 600)


def problem(evidence: Evidence, step: str) -> str | None:
    """What is wrong with the first recording of a step that is."""
    run = evidence.run(step)
    for leg, recording in sorted(evidence.recordings(step).items()):
        words = next(_words(recording, run, leg), None)
        if words is not None:
            return f"{file_of(step, leg)}: {words}"
    return _copied(evidence, step)


def _words(recording: Recording, run: Run, leg: str) -> Iterator[str]:
    yield from _clock(recording)
    yield from _answer(recording)
    if is_streamed(recording):
        yield from _stream(recording, run, leg)


def late_ms(recording: Recording) -> float:
    """How long a thread may have stood between two of its own steps."""
    waited = recording.cpu_wait_ms
    return HEAD_PARSED_MS + (CPU_WAIT_SLACK_MS if waited is None else waited)


def _clock(recording: Recording) -> Iterator[str]:
    times = [read.t_ms for read in recording.reads]
    for number, (one, other) in enumerate(pairwise(times), 2):
        if other < one:
            yield (
                f"read {number} came at {other:.6g} ms, expected {one:.6g} or later, because the "
                "read before it did, and reads come one after the other"
            )
    end_ms = recording.end.t_ms
    if times and end_ms < times[-1]:
        yield (
            f"it ended at {end_ms:.6g} ms, expected {times[-1]:.6g} or later, because its last "
            "read came then"
        )
    head_ms = recording.headers_ms
    if head_ms is None:
        return
    if head_ms > end_ms:
        yield f"headers_ms is {head_ms:.6g}, expected {end_ms:.6g} at most, because it ended then"
    for number, time_ms in enumerate(times, 1):
        # The first may have come with the head.
        early = time_ms < head_ms - (late_ms(recording) if time_ms == times[0] else 0.0)
        if early:
            yield (
                f"read {number} came at {time_ms:.6g} ms, expected {head_ms:.6g} or later, "
                "because headers_ms says that the answer's head was read then"
            )
    waited = recording.cpu_wait_ms
    if waited is not None and waited > end_ms + (recording.connect_ms or 0.0) + CPU_WAIT_SLACK_MS:
        yield (
            f"cpu_wait_ms is {waited:.6g}, expected {end_ms:.6g} at most, because the exchange "
            "took no longer"
        )


def _answer(recording: Recording) -> Iterator[str]:
    status, kind = recording.status, recording.end.kind
    if status is None:
        if recording.reads or recording.response_headers or recording.headers_ms is not None:
            yield "status is null, expected a number, because an answer came"
        if kind == "eof":
            yield "it ended with eof, expected another end, because status says that no answer came"
        return
    if type(status) is not int or status not in ANSWERED:
        yield f"status is {status!r}, expected 100 to 599, because HTTP has no other"
    headers = {name.lower(): value for name, value in recording.response_headers}
    length, size = headers.get("content-length", ""), len(recording.body)
    plain = "content-encoding" not in headers and "transfer-encoding" not in headers
    if plain and length.isdecimal() and size > int(length):
        yield (
            f"the body has {size} bytes, expected {length} at most, because the answer's "
            "Content-Length says so"
        )
    if kind in ("eof", "closed") and recording.end.detail:
        yield f"its end has the detail {recording.end.detail!r}, expected none of {kind}"


def _stream(recording: Recording, run: Run, leg: str) -> Iterator[str]:
    if (recording.status is None) != (recording.headers_ms is None):
        yield "headers_ms and status do not agree, expected both or neither: an answer has both"
    if recording.end.kind == "closed" and not is_close(leg):
        yield "it ended with closed, expected eof, because only the cancel step closes"
    stamps = run.facts.get("stamps")
    if isinstance(stamps, dict) and recording.jitter_ms != stamps.get("jitter_ms"):
        yield (
            f"jitter_ms is {recording.jitter_ms}, expected {stamps.get('jitter_ms')}, because "
            "run.json says that stamps of this run are worth that"
        )
    if not run.is_ours:
        return
    if recording.reading != READING:
        yield (f"reading is {recording.reading}, expected {READING}, because this version made it")
    done = _read_with_done(recording)
    if done is not None and done < len(recording.reads):
        yield (
            f"it has {len(recording.reads)} reads, expected {done}, because [DONE] came in that "
            "one, and reading stops there"
        )


def _read_with_done(recording: Recording) -> int | None:
    decoder = sse.Decoder()
    with contextlib.suppress(sse.TooLong):  # what is behind was not looked at
        for number, read in enumerate(recording.reads, 1):
            if any(map(sse.is_done, decoder.feed(read.data))):
                return number
    return None


# --- one against another ---

Print = tuple[object, ...]


def _print_of(recording: Recording) -> Print | None:
    """What no two exchanges have in common; None: too little came to tell them apart."""
    times = [read.t_ms for read in recording.reads]
    if not times or not is_streamed(recording):
        return None
    if len(set(times)) < ARRIVALS_TOLD_APART:
        moments = (recording.connect_ms, recording.headers_ms, *times, recording.end.t_ms)
        return (recording.body, *moments)
    return (recording.body, *(round(time_ms - times[0], 3) for time_ms in times))


def _copied(evidence: Evidence, step: str) -> str | None:
    """The recording, or the salt, that another one has, too: of this step, or of another."""
    seen: dict[Print, str] = {}
    salts: dict[str, tuple[str, str]] = {}
    for name in sorted(evidence.index.steps(), key=lambda name: (name == step, name)):
        if not evidence.index.names(name):
            continue
        recordings = evidence.recordings(name) if name == step else evidence.known(name)
        for leg, recording in sorted(recordings.items()):
            file = file_of(name, leg)
            found = _print_of(recording)
            if found is not None:
                if found in seen and name == step:
                    return (
                        f"{file}: its bytes and times are those of {seen[found]}, expected "
                        "others, because no two answers come alike to the microsecond: is it a "
                        "copy of another?"
                    )
                seen.setdefault(found, file)
            salt = salt_of(recording.request.body.get("messages") or [])
            group = _salted_alike(name, leg)
            if salt is not None and salt in salts and salts[salt][0] != group and name == step:
                return (
                    f"{file}: its salt {salt} is that of {salts[salt][1]}, expected another, "
                    "because every cold leg is given one that no earlier prompt had"
                )
            if salt is not None:
                salts.setdefault(salt, (group, file))
    return None


def _salted_alike(name: str, leg: str) -> str:
    """Legs that share a salt: those of a round of the cache step."""
    if lab_step(name) != "cache":
        return f"{name}/{leg}"
    prefix = LONGER if leg.startswith(LONGER) else SALTED
    return f"{name}/{prefix}{leg.rpartition('-')[2]}"
