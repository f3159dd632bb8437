"""The lab of one session: each step measured once, when it is first asked for, and kept.

A test asks for a step's result and gets it, whatever else was selected; so every step runs
alone. It ties measurements to files; it does not judge and does not know pytest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from .. import sse
from ..errors import LatencyError, RateLimited, StreamError
from ..evidence import artifacts
from ..evidence.artifacts import Report, dump, parse, report_of
from ..evidence.run_directory import SERVER_LOG, RunDirectory
from ..servers.logs import RunLog
from ..steps.bench import Bench
from ..steps.cache.measure import measure_cache
from ..steps.cache.result import CacheResult
from ..steps.cancel.measure import measure_cancel
from ..steps.cancel.result import CancelResult
from ..steps.legs import UPSTREAM
from ..steps.prefill.measure import measure_prefill
from ..steps.prefill.result import PrefillResult
from ..steps.report.result import SOURCES, ReportResult
from ..steps.sentence.measure import measure_sentence
from ..steps.sentence.result import SentenceResult
from ..steps.server.measure import measure_server
from ..steps.server.result import ServerResult
from ..steps.sse.measure import measure_sse
from ..steps.sse.result import SseResult
from ..steps.ttft.measure import measure_ttft
from ..steps.ttft.result import TtftResult
from ..verdicts.blame import upstream_words

T = TypeVar("T")


# What is worth measuring at the server behind. (Its log is not looked at there.)
_MEASURES: Mapping[str, Callable[[Bench], Any]] = {
    "sse": measure_sse,
    "ttft": measure_ttft,
    "prefill": measure_prefill,
    "cache": measure_cache,
    "sentence": measure_sentence,
    "cancel": lambda bench: measure_cancel(bench, None),
}


WORKS_BEHIND = (
    "Measured directly at the server behind, it can be used: what stands between is to blame"
)


class LiveLab:
    """The steps, measured when they are first asked for.

    `bench`, `log` and `control` are called when a step must measure, not before; `control` gives
    what measures the server behind, None where there is none.
    """

    def __init__(
        self,
        run: RunDirectory,
        bench: Callable[[], Bench],
        log: Callable[[], RunLog | None],
        control: Callable[[], Bench | None],
    ) -> None:
        self._run = run
        self._bench = bench
        self._log = log
        self._control = control
        self._results: dict[str, Any] = {}

    def _once(self, step: str, measure: Callable[[], T]) -> T:
        """Measure the step, or give what it gave before, an error included."""
        if step not in self._results:
            self._run.begin_step(step)
            try:
                self._results[step] = measure()
                self._run.commit_step(step)
            except LatencyError as failure:
                error = self._told_apart(step, failure)
                self._results[step] = error
                self._run.fail_step(step, str(error), isinstance(error, RateLimited))
            except BaseException as error:  # a timeout, Ctrl-C: told in run.json, and passed on
                words = "interrupted" if isinstance(error, KeyboardInterrupt) else repr(error)
                with contextlib.suppress(LatencyError):  # what ends the run is to be told
                    self._run.fail_step(step, words)
                    self._run.save()
                raise
            self._run.save()
        result: T | LatencyError = self._results[step]
        if isinstance(result, LatencyError):
            raise result
        return result

    def forget(self, step: str) -> None:
        """Measure the step anew when it is next asked for."""
        for name in (step, UPSTREAM + step):
            self._results.pop(name, None)

    def server(self) -> ServerResult:
        """Step 1: health.json and props.json, as received."""

        def measure() -> ServerResult:
            result = measure_server(self._bench())
            for name, reply in result.files():
                self._run.write(name, reply.body, "server")
            return result

        return self._once("server", measure)

    def sse(self) -> SseResult:
        """Step 2: sse.py, sse_raw.txt, chunks.jsonl."""

        def measure() -> SseResult:
            result = measure_sse(self._bench())
            self._run.write("sse.py", Path(sse.__file__).read_bytes(), "sse")
            self._run.write("sse_raw.txt", result.raw, "sse")
            self._run.finish_step("sse", first_token_ms=result.timeline.first_token_ms)
            self._run.write("chunks.jsonl", sse.chunk_lines(map(asdict, result.chunks)), "sse")
            return result

        return self._once("sse", measure)

    def ttft(self) -> TtftResult:
        """Step 3: ttft.json."""

        def measure() -> TtftResult:
            result = measure_ttft(self._bench())
            self._run.write("ttft.json", dump(result.ttft), "ttft")
            first_tokens = [timeline.first_token_ms for timeline in result.timelines]
            self._run.finish_step("ttft", first_token_ms=first_tokens)
            return result

        return self._once("ttft", measure)

    def prefill(self) -> PrefillResult:
        """Step 4: prefill.json."""
        return self._one_file("prefill", measure_prefill, lambda result: result.rows)

    def cache(self) -> CacheResult:
        """Step 5: cache.json."""
        return self._one_file("cache", measure_cache, lambda result: result.cache)

    def sentence(self) -> SentenceResult:
        """Step 6: sentence.json; how it would be spoken goes into run.json."""

        def measure() -> SentenceResult:
            result = measure_sentence(self._bench())
            self._run.write("sentence.json", dump(result.sentence), "sentence")
            self._run.finish_step("sentence", speech=result.speech and asdict(result.speech))
            return result

        return self._once("sentence", measure)

    def _one_file(
        self, step: str, measure: Callable[[Bench], T], artifact: Callable[[T], Any]
    ) -> T:
        """A step whose one artifact has its name."""

        def measure_and_write() -> T:
            result = measure(self._bench())
            self._run.write(f"{step}.json", dump(artifact(result)), step)
            return result

        return self._once(step, measure_and_write)

    def cancel(self) -> CancelResult:
        """Step 7: cancel.json; the cases beside the contract's go into run.json."""

        def measure() -> CancelResult:
            log = self._log()
            result = measure_cancel(self._bench(), log)
            self._run.write("cancel.json", dump(result.cancel), "cancel")
            self._run.finish_step(
                "cancel",
                cases=[asdict(case) for case in result.cases],
                log_source=result.log_source,
            )
            if log is not None:
                self._run.write(SERVER_LOG, log.read(), "cancel")
            return result

        return self._once("cancel", measure)

    def report(self) -> ReportResult:
        """Step 8: report.json, from files of one run; measured first where they are not."""

        def measure() -> ReportResult:
            if self._run.of_one_run(SOURCES) is None:
                for step in (self.ttft, self.prefill, self.cache, self.sentence, self.cancel):
                    step()
            source_run = self._run.of_one_run(SOURCES)
            expected = report_of(*(self._load(name) for name in SOURCES))
            self._run.write("report.json", dump(expected), "report")
            self._run.finish_step("report", copied_from_run=source_run)
            if source_run != self._run.run_id:
                self._run.note("report", f"copied from the files of the run {source_run}")
            return ReportResult(parse(Report, dump(expected), "report.json"), expected)

        return self._once("report", measure)

    def _told_apart(self, step: str, error: LatencyError) -> LatencyError:
        """A stream that could not be used: can the server behind's?"""
        if not isinstance(error, StreamError) or isinstance(error, RateLimited):
            return error
        try:
            words = WORKS_BEHIND if self.upstream(step) is not None else None
        except LatencyError as behind:
            words = upstream_words(behind)
        return error if words is None else StreamError(f"{error}. {words}")

    def upstream(self, step: str) -> Any | None:
        """The step once more, at the server behind."""
        bench = self._control()
        if bench is None or step not in _MEASURES:
            return None

        def measure() -> Any:
            result = _MEASURES[step](bench)
            self._run.finish_step(UPSTREAM + step, outcome="passed")  # it is judged elsewhere
            return result

        return self._once(UPSTREAM + step, measure)

    def known(self, step: str) -> Any | None:
        """What a step gave; None where it was not measured, or could not be. Measures nothing."""
        result = self._results.get(step)
        return None if isinstance(result, LatencyError) else result

    def run_of(self, step: str) -> str | None:  # noqa: ARG002
        """This run: what it gives, it has measured."""
        return self._run.run_id

    def _load(self, name: str) -> Any:
        return parse(artifacts.FILES[name], self._run.read(name), name)
