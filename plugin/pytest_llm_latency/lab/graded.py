"""The lab graded from a directory's files alone: no server, no network.

Two levels. *Evidence*: the directory is a run of ours, with run.json; every number is derived
again from the recorded bytes, and the files must be that run's, unchanged. *Contract*: only the
lab's artifacts are there, however they were made; they must have the contract's form and keep
its relations.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from .. import sse
from ..errors import ArtifactError, LatencyError, NotDoneYet, RateLimited, StreamError
from ..evidence.activity import Poll, load_polls
from ..evidence.artifacts import CHUNKS, check, dump, report_of
from ..evidence.derive import derive
from ..evidence.recording import End, Recording, Reply, Request, load
from ..evidence.run_directory import SERVER_LOG
from ..evidence.run_index import EVIDENCE, RUN_FILE, RunIndex
from ..evidence.server_log import cancel_line
from ..look import CAPABILITIES
from ..proof.evidence import Evidence
from ..proof.verdicts import NONSENSE
from ..proof.verdicts import verdicts as proof_of
from ..steps.answers import counted_tokens
from ..steps.by_hand import Given
from ..steps.cache.by_hand import cache_cause
from ..steps.cache.result import CacheResult, cache_result
from ..steps.cancel.case import CancelCase, LogSpan, cancel_case
from ..steps.cancel.legs import (
    CANCEL_CLOSE_AT,
    CANCEL_PREFILL,
    CANCEL_TOKENS,
    is_close,
    order_of_closes,
)
from ..steps.cancel.result import CancelResult, cancel_result
from ..steps.checks import FILES_OF, checks
from ..steps.legs import UPSTREAM
from ..steps.prefill.judge import lab_documents
from ..steps.prefill.result import PrefillResult, prefill_result
from ..steps.report.result import SOURCES, ReportResult
from ..steps.sentence.result import SentenceResult, sentence_result
from ..steps.sentence.sentences import Rule
from ..steps.sentence.speech import WORDS_PER_MINUTE
from ..steps.server.result import ServerResult, server_result
from ..steps.sse.program import sse_program
from ..steps.sse.raw import by_events
from ..steps.sse.result import SseResult, sse_result
from ..steps.ttft.judge import five_runs, runs_differ
from ..steps.ttft.result import TtftResult, ttft_result
from ..verdicts.verdict import Verdict, graded
from .files import Files, first_difference
from .stored import stored_difference

Level = Literal["evidence", "contract"]
POLLS = ".polls.jsonl"
# What the closes of a directory of before this was known do not have.
LATER_KEYS = frozenset(one.name for one in fields(CancelCase) if one.default is not MISSING)
R = TypeVar("R")
_UPSTREAM_RESULTS: Mapping[str, Callable[[dict[str, Recording]], Any]] = {
    "sse": sse_result,
    "ttft": ttft_result,
    "prefill": prefill_result,
    "cache": cache_result,
}


class GradedLab:
    """The eight steps from files. `extra(step)` has the verdicts that only grading gives.

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

    def known(self, step: str) -> Any | None:
        """What a step gives, None where the files do not."""
        try:
            return getattr(self, step)()
        except LatencyError:
            return None

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

    # --- contract: the files against each other ---

    @functools.cached_property
    def given(self) -> Given:
        """What the directory has; what cannot be read is left out, and its own step says why."""
        named: dict[str, Any] = {
            name.removesuffix(".json"): functools.partial(self._files.parse_by_hand, name)
            for name in SOURCES
        }
        named["report"] = lambda: self._files.parse("report.json")
        named["chunks"] = self._files.chunks
        named["stream"] = lambda: derive(_by_hand(self._files.read_bytes("sse_raw.txt")))
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

    # --- evidence: the run's own recordings ---

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

    # --- the steps ---

    def server(self) -> ServerResult:
        """Step 1."""
        self._begun("server")
        if self.index is None:
            health, props = (
                Reply(200, self._files.read_bytes(name), 0.0)
                for name in ("health.json", "props.json")
            )
            for name in ("health.json", "props.json"):
                self._files.parse(name)
            return ServerResult(health, props)
        result = self._derived("server", server_result)
        self._proven("server", {name: reply.body for name, reply in result.files()})
        if self.index.has(CAPABILITIES):
            problem = self.index.problem(CAPABILITIES, (), self._files.read_bytes)
            self._extra["server"].append(
                graded("server", "the look at the server is unchanged", problem)
            )
        return result

    def sse(self) -> SseResult:
        """Step 2."""
        self._begun("sse")
        raw, chunks = self._files.read_bytes("sse_raw.txt"), self._files.chunks()
        program = sse_program(self._files.read_bytes("sse.py"))
        if self.index is None:
            self._extra["sse"] = [program]
            return SseResult(by_events(raw), chunks, derive(_by_hand(raw)), timed=False)
        result = self._derived("sse", sse_result)
        lines = sse.chunk_lines(map(asdict, result.chunks))
        self._proven("sse", {"sse_raw.txt": result.raw, CHUNKS: lines}, ("sse.py",))
        self._extra["sse"].append(program)
        self._first_tokens("sse", result.timeline.first_token_ms)
        return result

    def ttft(self) -> TtftResult:
        """Step 3."""
        self._begun("ttft")
        found = self._parsed("ttft.json")
        if self.index is None:
            self._extra["ttft"] = [runs_differ(found), five_runs(found)]
            return TtftResult(found)
        result = self._derived("ttft", ttft_result)
        self._proven("ttft", {"ttft.json": dump(result.ttft)})
        self._first_tokens("ttft", [timeline.first_token_ms for timeline in result.timelines])
        return result

    def prefill(self) -> PrefillResult:
        """Step 4."""
        self._begun("prefill")
        found = self._parsed("prefill.json")
        if self.index is None:
            self._extra["prefill"] = [lab_documents(found)]
            return PrefillResult(found, {})
        result = self._derived("prefill", prefill_result)
        self._proven("prefill", {"prefill.json": dump(result.rows)})
        return result

    def cache(self) -> CacheResult:
        """Step 5."""
        self._begun("cache")
        found = self._parsed("cache.json")
        if self.index is None:
            return CacheResult(found, {}, why=cache_cause(found, self.given.prefill))
        result = self._derived("cache", cache_result)
        self._proven("cache", {"cache.json": dump(result.cache)})
        return result

    def sentence(self) -> SentenceResult:
        """Step 6."""
        self._begun("sentence")
        found = self._parsed("sentence.json")
        if self.index is None:
            return SentenceResult(found)
        result = self._derived("sentence", self._sentence_result)
        self._proven("sentence", {"sentence.json": dump(result.sentence)})
        spoken = self.index.step("sentence").get("speech")
        derived = json.loads(json.dumps(result.speech and asdict(result.speech)))
        difference = first_difference(spoken, derived, f"{RUN_FILE}: speech")
        self._extra["sentence"].append(graded("sentence", "run.json has it spoken so", difference))
        return result

    def cancel(self) -> CancelResult:
        """Step 7."""
        self._begun("cancel")
        found = self._parsed("cancel.json")
        log = self._server_log()
        if self.index is None:
            source = "the server's log" if log is not None else None
            line = cancel_line(log) if log is not None else None
            return CancelResult(found, (), None, None, source, line, None)
        entry = self.index.step("cancel")
        spans = check_spans(entry.get("cases"))
        result = self._derived(
            "cancel", lambda recordings: self._cancel("cancel", recordings, log, spans, entry)
        )
        source = entry.get("log_source")
        if not isinstance(source, str | None):
            raise ArtifactError(f"{RUN_FILE}: log_source is no text")
        also = (SERVER_LOG,) if result.log_source is not None else ()
        self._proven("cancel", {"cancel.json": dump(result.cancel)}, also)
        saved = entry.get("cases")
        derived = json.loads(json.dumps([asdict(case) for case in result.cases]))
        for case, was in zip(derived, saved if isinstance(saved, list) else []):
            for key in LATER_KEYS.difference(was if isinstance(was, dict) else ()):
                del case[key]  # a directory of before
        difference = first_difference(saved, derived, f"{RUN_FILE}: cases")
        self._extra["cancel"].append(graded("cancel", "run.json has these closes", difference))
        return result

    def upstream(self, step: str) -> Any | None:
        """The step at the server behind, where the run has measured it."""
        name = UPSTREAM + step
        if self.index is None or not self.index.has(name):
            return None
        if self.index.step(name)["run"] != self.index.step(step)["run"]:
            return None  # of an earlier run
        problem = self.index.problem(name, (), self._files.read_bytes)
        if problem is not None:
            raise ArtifactError(problem)
        if step == "cancel":
            entry = self.index.step(name)
            return self._derived(
                name, lambda recordings: self._cancel(name, recordings, None, {}, entry)
            )
        if step == "sentence":
            return self._derived(name, self._sentence_result)
        return self._derived(name, _UPSTREAM_RESULTS[step])

    def upstream_words(self, step: str) -> str | None:
        """Why the run could not measure the step at the server behind; None: it says nothing."""
        words = self.index.step(step).get("upstream_words") if self.index is not None else None
        return None if words is None else str(words)

    def _sentence_result(self, recordings: dict[str, Recording]) -> SentenceResult:
        """By the rule and the rate that the run chose."""
        return sentence_result(recordings, *self.spoken_by())

    def _cancel(
        self,
        step: str,
        recordings: dict[str, Recording],
        log: bytes | None,
        spans: Mapping[str, LogSpan],
        entry: Mapping[str, Any],
    ) -> CancelResult:
        cases = []
        for name in sorted(recordings, key=order_of_closes):
            if not is_close(name):
                continue
            tokens = recordings.get(CANCEL_TOKENS) if name == CANCEL_PREFILL else None
            span = spans.get(name)
            part = log[span.log_from : span.log_to] if log is not None and span else None
            try:
                cases.append(
                    cancel_case(
                        name,
                        recordings[name],
                        self._polls(step, name),
                        part,
                        span,
                        counted_tokens(tokens),
                        recordings,
                    )
                )
            except StreamError:
                if name == CANCEL_CLOSE_AT:
                    raise
        source = entry.get("log_source")
        return cancel_result(recordings, cases, None if source is None else str(source))

    def _polls(self, step: str, name: str) -> list[Poll]:
        assert self.index is not None
        file = f"{EVIDENCE}/{step}/{name}{POLLS}"
        if file not in self.index.names(step):
            raise ArtifactError(f"{file}: is not listed in {RUN_FILE}")
        return load_polls(self._files.read_text(file), file)

    def report(self) -> ReportResult:
        """Step 8."""
        self._begun("report")
        found = self._files.parse("report.json")
        expected = report_of(*(self._parsed(name) for name in SOURCES))
        if self.index is not None:
            self._proven("report", {"report.json": dump(expected)})
            problem = self.index.mixed(SOURCES)
            self._extra["report"].append(graded("report", "all sources are of one run", problem))
        return ReportResult(found, expected)


def _by_hand(raw: bytes) -> Recording:
    """A raw stream that was saved without times."""
    request = Request("POST", "", {}, {})
    reads = (sse.Read(0.0, by_events(raw)),)
    return Recording("sse/stream", request, 200, (), None, None, reads, End("eof", 0.0))


def check_spans(cases: Any) -> dict[str, LogSpan]:
    """The parts of the log by close, as run.json has them. Raises ArtifactError."""
    spans = {}
    for case in cases if isinstance(cases, list) else []:
        if isinstance(case, dict) and case.get("log_span") is not None:
            where = f"{RUN_FILE}: log_span"
            spans[str(case.get("name"))] = check(LogSpan, case["log_span"], where)
    return spans


def _bytes(content: bytes | str) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content
