"""A directory that is graded: its files, its index, and what its recordings must agree with.

Two levels. *Evidence*: the directory is a run of ours, with run.json; every number is derived
again from the recorded bytes, and the files must be that run's, unchanged. *Contract*: only the
lab's artifacts are there, however they were made; they must have the contract's form and keep
its relations.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from .. import sse
from ..errors import ArtifactError, NotDoneYet, RateLimited
from ..evidence.activity import Poll, load_polls
from ..evidence.derive import derive
from ..evidence.recording import End, Recording, Request, load
from ..evidence.run_directory import SERVER_LOG
from ..evidence.run_index import EVIDENCE, RUN_FILE, RunIndex
from ..proof.evidence import Evidence
from ..proof.verdicts import NONSENSE
from ..proof.verdicts import verdicts as proof_of
from ..steps.by_hand import Given
from ..steps.checks import FILES_OF, checks
from ..steps.report.result import SOURCES
from ..steps.sentence.sentences import Rule
from ..steps.sentence.speech import WORDS_PER_MINUTE
from ..steps.sse.raw import by_events
from ..verdicts.verdict import Verdict, graded
from .files import Files, first_difference
from .stored import stored_difference

Level = Literal["evidence", "contract"]
POLLS = ".polls.jsonl"
R = TypeVar("R")


class GradedDirectory:
    """What grading any step needs. `extra(step)` has the verdicts that only grading gives.

    `log` gives the server's log from elsewhere, for a directory that has none.
    """

    def __init__(
        self, directory: Path, max_bytes: int, log: Callable[[], bytes | None] = lambda: None
    ) -> None:
        self._files = Files(directory, max_bytes)
        self._log = log
        self._extra: dict[str, list[Verdict]] = {}
        self.index: RunIndex | None = None  # None: the directory has no run.json
        if self._files.exists(RUN_FILE):
            self.index = RunIndex.parse(self._files.read_text(RUN_FILE))

    @property
    def level(self) -> Level:
        """What the verdicts stand on."""
        return "contract" if self.index is None else "evidence"

    def has_files(self) -> bool:
        """Whether there is anything to grade."""
        names = {name for names in FILES_OF.values() for name in names}
        return self.index is not None or any(map(self._files.exists, names))

    def spoken_by(self) -> tuple[Rule, float]:
        """(the sentence rule, the words a minute) of the run that measured the sentence step."""
        if self.index is None or not self.index.has("sentence"):
            return "plain", WORDS_PER_MINUTE
        chosen = self.index.option("sentence", "sentence")
        rate = self.index.option("sentence", "speech_wpm")
        return "careful" if chosen == "careful" else "plain", float(rate)

    def run_of(self, step: str) -> str | None:
        """The run that has measured the step; None where nothing says so."""
        if self.index is None or not self.index.has(step):
            return None
        return str(self.index.step(step)["run"])

    def problem(self, step: str) -> str | None:
        """Why the step is not as its run left it, or that run has not passed it; None: it has, or
        nothing can say so. Raises ArtifactError if the run has not measured it."""
        if self.index is None:
            return None
        return self.index.problem(step, (), self._files.read_bytes)

    def extra(self, step: str, judged: Sequence[Verdict]) -> list[Verdict]:
        """The step's further verdicts, given the relations' (`judged`)."""
        verdicts = list(self._extra.get(step, ()))
        if self.index is None:
            verdicts += checks(step, self.given)
        else:
            verdicts += [*proof_of(self._evidence, step), self._same_verdicts(step, judged)]
        return verdicts

    def _same_verdicts(self, step: str, judged: Sequence[Verdict]) -> Verdict:
        assert self.index is not None
        found = self.index.step(step).get("verdicts")
        difference = stored_difference(found, judged, self._evidence.is_of_this_version(step))
        return graded(step, "run.json has these verdicts", difference)

    @functools.cached_property
    def given(self) -> Given:
        """What the directory has; what cannot be read is left out, and its own step says why."""
        named: dict[str, Any] = {
            name.removesuffix(".json"): functools.partial(self._files.parse_by_hand, name)
            for name in SOURCES
        }
        named["report"] = lambda: self._files.parse("report.json")
        named["chunks"] = self._files.chunks
        named["stream"] = lambda: derive(from_raw(self._files.read_bytes("sse_raw.txt")))
        named["log"] = self._server_log
        found = {}
        for name, read in named.items():
            with contextlib.suppress(ArtifactError):
                found[name] = read()
        return Given(**found)

    def _begun(self, step: str) -> None:
        """Raise NotDoneYet where a directory made by hand has nothing of a step, ArtifactError with
        a hint where a file has another name."""
        if self.index is not None:
            failure = self.index.failures().get(step, {})
            if failure.get("rate_limited") is True:
                raise RateLimited(str(failure.get("error")))
            return
        names = FILES_OF[step]
        near = {name: self._files.near(name) for name in names if not self._files.exists(name)}
        # A log is saved for the cancel step alone.
        logged = step == "cancel" and self._files.exists(SERVER_LOG)
        if len(near) == len(names) and not any(near.values()) and not logged:
            raise NotDoneYet(f"not done yet: {step} ({', '.join(names)})")
        for name, other in near.items():
            hint = "" if other is None else f"; there is {other}: rename it"
            raise ArtifactError(f"{name}: is missing{hint}")

    def _server_log(self) -> bytes | None:
        exists = self._files.exists(SERVER_LOG)
        log = self._files.read_bytes(SERVER_LOG) if exists else self._log()
        if log is not None and log.startswith((b"\xff\xfe", b"\xfe\xff")):
            log = log.decode("utf-16", "replace").encode("utf-8")  # PowerShell's `>`
        return log

    def _recordings(self, step: str) -> dict[str, Recording]:
        assert self.index is not None
        prefix = f"{EVIDENCE}/{step}/"
        recordings = {}
        for name in self.index.names(step):
            if name.startswith(prefix) and not name.endswith(POLLS):
                recording = load(self._files.read_text(name), name)
                leg = name.removeprefix(prefix).removesuffix(".jsonl")
                if recording.label != f"{step}/{leg}":
                    raise ArtifactError(f"{name}: is labelled {recording.label!r}")
                recordings[leg] = recording
        return recordings

    def _derived(self, step: str, derive_result: Callable[[dict[str, Recording]], R]) -> R:
        """What the recordings give. Here our rules meet data that anybody may have written:
        what they stumble over is the file's fault."""
        recordings = self._recordings(step)
        try:
            return derive_result(recordings)
        except NONSENSE as error:
            raise ArtifactError(f"{EVIDENCE}/{step}: cannot be derived from: {error!r}") from None

    def _proven(
        self, step: str, expected: Mapping[str, bytes | str], also: Sequence[str] = ()
    ) -> None:
        """Keep the verdicts on the step's files: unchanged, of one run, and derivable.

        `expected` has each artifact as its evidence gives it; `also` names other files.
        """
        assert self.index is not None
        problem = self.index.problem(step, (*expected, *also), self._files.read_bytes)
        difference = None
        for name, content in expected.items():
            difference = difference or self._files.difference(name, _bytes(content))
        self._extra[step] = [
            graded(step, "the files are unchanged and of one run", problem),
            graded(step, "every value is derived again from the bytes", difference),
        ]

    @functools.cached_property
    def _evidence(self) -> Evidence:
        assert self.index is not None
        return Evidence(self.index, self._recordings, self._polls, self._files.read_bytes)

    def _first_tokens(self, step: str, derived: Any) -> None:
        """What run.json alone has of a step."""
        assert self.index is not None
        found = self.index.step(step).get("first_token_ms")
        difference = first_difference(found, derived, f"{RUN_FILE}: first_token_ms")
        self._extra[step].append(graded(step, "run.json has these first tokens", difference))

    def _parsed(self, name: str) -> Any:
        return self._files.parse(name) if self.index else self._files.parse_by_hand(name)

    def _polls(self, step: str, name: str) -> list[Poll]:
        assert self.index is not None
        file = f"{EVIDENCE}/{step}/{name}{POLLS}"
        if file not in self.index.names(step):
            raise ArtifactError(f"{file}: is not listed in {RUN_FILE}")
        return load_polls(self._files.read_text(file), file)


def from_raw(raw: bytes) -> Recording:
    """A raw stream that was saved without times."""
    request = Request("POST", "", {}, {})
    reads = (sse.Read(0.0, by_events(raw)),)
    return Recording("sse/stream", request, 200, (), None, None, reads, End("eof", 0.0))


def _bytes(content: bytes | str) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content
