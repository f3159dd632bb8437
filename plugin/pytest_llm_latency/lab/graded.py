"""The eight steps from a directory's files alone: no server, no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from .. import sse
from ..errors import ArtifactError, LatencyError, StreamError
from ..evidence.artifacts import CHUNKS, check, dump, report_of
from ..evidence.derive import derive
from ..evidence.recording import Recording, Reply
from ..evidence.run_directory import SERVER_LOG
from ..evidence.run_index import RUN_FILE
from ..evidence.server_log import cancel_line
from ..look import CAPABILITIES
from ..steps.answers import counted_tokens
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
from ..steps.legs import UPSTREAM
from ..steps.prefill.judge import lab_documents
from ..steps.prefill.result import PrefillResult, prefill_result
from ..steps.report.result import SOURCES, ReportResult
from ..steps.sentence.result import SentenceResult, sentence_result
from ..steps.server.result import ServerResult, server_result
from ..steps.sse.program import sse_program
from ..steps.sse.raw import by_events
from ..steps.sse.result import SseResult, sse_result
from ..steps.ttft.judge import five_runs, runs_differ
from ..steps.ttft.result import TtftResult, ttft_result
from ..verdicts.verdict import graded
from .directory import GradedDirectory, from_raw
from .files import first_difference

# What the closes of a directory of before this was known do not have.
LATER_KEYS = frozenset(one.name for one in fields(CancelCase) if one.default is not MISSING)
_UPSTREAM_RESULTS: Mapping[str, Callable[[dict[str, Recording]], Any]] = {
    "sse": sse_result,
    "ttft": ttft_result,
    "prefill": prefill_result,
    "cache": cache_result,
}


class GradedLab(GradedDirectory):
    """The eight steps from files."""

    def known(self, step: str) -> Any | None:
        """What a step gives, None where the files do not."""
        try:
            return getattr(self, step)()
        except LatencyError:
            return None

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
            return SseResult(by_events(raw), chunks, derive(from_raw(raw)), timed=False)
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


def check_spans(cases: Any) -> dict[str, LogSpan]:
    """The parts of the log by close, as run.json has them. Raises ArtifactError."""
    spans = {}
    for case in cases if isinstance(cases, list) else []:
        if isinstance(case, dict) and case.get("log_span") is not None:
            where = f"{RUN_FILE}: log_span"
            spans[str(case.get("name"))] = check(LogSpan, case["log_span"], where)
    return spans
