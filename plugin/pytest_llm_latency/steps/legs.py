"""Legs: the requests of a step by name, what each asks, and which of them count. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import sse
from ..errors import ArtifactError
from ..evidence.recording import Recording
from ..evidence.timeline import Timeline
from ..plan import Messages, salt_of
from .answers import is_usable

Recordings = Mapping[str, Recording]
SALTED = "salted-"
LONGER = "longer-"


def counting(recordings: Recordings, of_longer: str = "") -> tuple[Recordings, bool]:
    """(the legs that count, whether they are salted): those measured with a longer prompt (which
    has a salt, too), else with a salt, else to the letter. `of_longer` is the last leg of a longer
    prompt's first round."""
    for prefix in (LONGER, SALTED):
        found = {
            leg.removeprefix(prefix): recording
            for leg, recording in recordings.items()
            if leg.startswith(prefix)
        }
        # A longer prompt that did not fit ends its round.
        if found and (prefix != LONGER or is_usable(found.get(of_longer))):
            return found, True
    return recordings, False


def leg_of(recordings: Recordings, name: str) -> Recording:
    try:
        return recordings[name]
    except KeyError:
        raise ArtifactError(f"the evidence lacks the request {name!r}") from None


def check_asked(recordings: Mapping[str, Recording], *, cache_prompt: bool) -> None:
    """Raise ArtifactError where a request is not the step's: a stream, with this cache_prompt
    unless the server refuses that field."""
    for leg, recording in recordings.items():
        request = recording.request
        found = {"stream": request.body.get("stream")}
        found["cache_prompt"] = request.body.get("cache_prompt", cache_prompt)
        wanted = {"stream": True, "cache_prompt": cache_prompt}
        differing = [key for key, value in wanted.items() if found[key] is not value]
        differing += ["method"] if request.method != "POST" else []
        if differing:
            raise ArtifactError(f"the request {leg!r} was not asked as the step asks: {differing}")


def salt_in(recording: Recording, salted: bool) -> str | None:
    return salt_of(recording.request.body.get("messages", [])) if salted else None


UPSTREAM = "upstream-"


@dataclass(frozen=True)
class Question:
    """A chat request before a server's dialect."""

    messages: Messages
    max_tokens: int
    cache_prompt: bool

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return sse.request_body(self.messages, self.max_tokens, self.cache_prompt)


def is_numbered(leg: str, prefix: str) -> bool:
    return re.fullmatch(re.escape(prefix) + r"[1-9]\d*", leg) is not None


def first_warm(timelines: Iterable[tuple[str, Timeline]], cold: Sequence[str]) -> Timeline | None:
    """The first of the legs of `cold`, repeats included, that is not proven cold."""
    proofs = (timeline for name, timeline in timelines if name.partition(".")[0] in cold)
    return next((proof for proof in proofs if not proof.cold), None)
