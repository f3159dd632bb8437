"""A pytest session that measures: server, run directory, costs and log held together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from .. import kb
from ..compare.ratios import FIGURES
from ..errors import ArtifactError, LatencyError, RateLimited
from ..evidence.artifacts import FILES, parse
from ..evidence.endpoints import server_facts
from ..evidence.run_directory import LIVE_LOG, SERVER_LOG, RunDirectory
from ..lab.live import LiveLab
from ..lab.protocol import Lab
from ..look import CAPABILITIES
from ..plan import Plan
from ..report import is_page
from ..report.inert import inert
from ..secrecy import hide_arguments, secrets_in
from ..servers.capabilities import Capabilities, look
from ..servers.choice import Server, choose, describe, open_server, wait_for_url
from ..servers.logs import FileLog, RunLog
from ..steps.bench import check_context, check_plan
from ..steps.legs import UPSTREAM
from ..steps.planned import planned
from ..verdicts.blame import refused_by_limit
from ..verdicts.verdict import Verdict
from ..wire.client import Client
from ..wire.costs import Costs
from ..wire.stamps import measure_stamps
from .clients import ClientSession
from .facts import load_average, session_facts
from .grade import given_log
from .resolve import UPSTREAM_API_KEY_VARIABLE
from .server import check_model_named, kb_directory, wanted_server
from .settings import Settings

LONG_PROMPT_STEPS = frozenset(("prefill", "cache", "cancel", "report"))
PAGE = "report.html"


class LiveSession(ClientSession):
    """Measures a server; made when the collection shows that this run measures."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        steps: frozenset[str],
        costs: Costs,
    ) -> None:
        """Check the options against the world and lock the directory; `steps` are selected,
        `costs` are those of all targets.

        Raises ConfigError, before anything was started.
        """
        super().__init__(config, settings, costs)
        self._config = config
        self._documents = kb.read(*kb_directory(settings))
        choose(wanted_server(settings, settings.server_args))
        given = given_log(settings, self.mask)
        if isinstance(given, FileLog):
            given.size()
        self._steps = steps
        self._run_log: RunLog | None = None
        self._server_line = ""
        self._stamps = measure_stamps()
        facts = session_facts(settings) | {"stamps": self._stamps and asdict(self._stamps)}
        self._run = RunDirectory(settings.artifacts, facts, settings.sources["artifacts"])
        with contextlib.suppress(ArtifactError):
            if is_page(self._run.path / PAGE):
                self._run.remove(PAGE)  # it would tell of files that change

    @property
    def run(self) -> RunDirectory:
        """The directory of this run."""
        return self._run

    def header(self) -> list[str]:
        """Which server is meant, and where the files go."""
        wanted = wanted_server(self.settings, self.settings.server_args)
        stamps = self._stamps.words() if self._stamps else "the error of stamps is not known"
        lines = [
            f"llm-latency: server: {describe(wanted)}",
            f"llm-latency: clock: {stamps}",
            f"llm-latency: files: {self.run.path}",
            *super().header(),
        ]
        if choose(wanted) == "url":
            requests, tokens = self._planned(Plan())
            lines.append(
                f"llm-latency: cost: by the lab's own plan at least {requests} requests, "
                f"{tokens:,} tokens (by their length); more where noise makes repeats necessary"
            )
        return list(map(self.language.say, lines))

    def _planned(self, plan: Plan) -> tuple[int, int]:
        return planned(plan, self._documents, self._steps, self.settings.rounds)

    @contextlib.contextmanager
    def open_server(self, args: tuple[str, ...], plan: Plan) -> Iterator[Server]:
        """Have the server, look at it, and check that the longest prompt fits."""
        check_plan(plan, self._documents)
        self._costs.check(*self._planned(plan))
        # A grading compares what was asked with it.
        self.run.facts["plan"] = self.mask.value(asdict(plan))
        settings, live_log = self.settings, self.run.path / LIVE_LOG
        try:
            args = hide_arguments(args)  # a test may have given others than the options
            self.mask = self.mask.also(secrets_in(args))
            wanted = wanted_server(settings, args)
            with open_server(wanted, live_log, self.progress, self._plain_client) as server:
                self._run_log = self._open_log(server)
                self._offers = self._look(self.client(server), CAPABILITIES)
                if settings.upstream_url is not None:
                    behind = self._to_upstream()
                    wait_for_url(
                        behind,
                        settings.start_timeout_s,
                        self.progress,
                        UPSTREAM_API_KEY_VARIABLE,
                    )
                    self._behind_offers = self._look(self._to_upstream(), UPSTREAM + CAPABILITIES)
                self._look_at(server)
                if self._steps & LONG_PROMPT_STEPS:
                    check_context(self._bench(self.client(server), plan))
                yield server
                self._save_log()
        finally:
            self.progress("")
            with contextlib.suppress(ArtifactError):  # what ended the block is to be told
                self.run.remove(LIVE_LOG)

    def _look(self, client: Client, step: str) -> Capabilities:
        offered = look(client, self.progress)
        self.run.finish_step(step, outcome="passed")  # it is no test
        return offered

    def _open_log(self, server: Server) -> RunLog | None:
        log = given_log(self.settings, self.mask) or server.log
        return RunLog(log, self.mask) if log is not None else None

    def _save_log(self) -> None:
        """The log's last part, where this run's cancel step stands on it."""
        if self._run_log is not None and self.run.owns(SERVER_LOG):
            try:
                log = self._run_log.read()
                self._tell_masked("cancel")
                # Rotated since, it is another: the cancel step stands on what it saved.
                if log.startswith(self.run.read_bytes(SERVER_LOG)):
                    self.run.write(SERVER_LOG, log, "cancel")
            except LatencyError as error:
                self.run.note("cancel", f"the end of the log is missing: {error}")

    def _look_at(self, server: Server) -> None:
        """Keep and show what the server says of itself. Raises ConfigError where nobody said
        which of its models to ask."""
        offered = self._offers
        facts: dict[str, Any] = {"url": server.base_url, "kind": server.kind}
        behind, behind_offers = self._behind(self.client(server))
        props = behind.get(behind_offers.props).json() if behind_offers.props else None
        facts |= server_facts(props)
        facts["offers"] = offered.facts()
        facts["log"] = self._run_log.source if self._run_log is not None else None
        facts["load_average"] = load_average()
        if self.settings.upstream_url is not None:
            facts["upstream"] = {"url": behind.base_url, "offers": behind_offers.facts()}
        self.run.facts["server"] = facts
        shown = [f"{facts['url']} ({facts['kind']})"]
        model = facts.get("model") or offered.dialect.model
        if model:
            shown.append(f"model {Path(str(model)).name}")
        shown += [
            f"{name} {facts[name]}" for name in ("n_ctx", "slots", "build") if facts.get(name)
        ]
        self._server_line = ", ".join(shown)
        if self._progress.active:
            with self._progress.uncaptured():
                self._reporter.ensure_newline()
                for line in self._facts_lines():
                    self._reporter.write_line(inert(self.language.say(line)))
        check_model_named(server.base_url, offered, "--llm-model")
        if behind_offers is not offered:
            check_model_named(behind.base_url, behind_offers, "--llm-upstream-model")

    def _facts_lines(self) -> list[str]:
        if not self._server_line:
            return []
        log = self._run_log.source if self._run_log is not None else "none"
        lines = [f"server: {self._server_line}", f"server: {self._offers.words()}; log: {log}"]
        if hasattr(self._config, "workerinput"):
            load = self.run.facts["server"]["load_average"]
            lines.append(f"machine: load {load} on {os.cpu_count()} cores, other targets beside it")
        if self.settings.upstream_url is not None:
            lines.append(f"behind: {self.settings.upstream_url} {self._behind_offers.words()}")
        return [*lines, *super()._facts_lines()]

    def keep_compared(self, step: str, facts: Mapping[str, Any]) -> None:
        """Keep it in an entry of its own: a grading derives the step's verdicts without it."""
        self.run.finish_step(step, compared=facts)

    def keep_upstream_words(self, step: str, words: str) -> None:
        """Keep, for a grading, why the server behind was not measured."""
        self.run.finish_step(step, upstream_words=words)

    def lab(self, plan: Plan, client: Callable[[], Client]) -> Lab:
        """The lab; `client` is called when a step measures."""
        self._lab = LiveLab(
            self.run,
            lambda: self._bench(client(), plan),
            lambda: self._run_log,
            lambda: self._control(plan),
        )
        return self._lab

    def forget(self, step: str) -> None:
        """In run.json, too; the lab measures the step anew."""
        super().forget(step)
        self.run.forget_verdicts(step)
        self._patched_in.discard(step)
        if isinstance(self._lab, LiveLab):
            self._lab.forget(step)

    def expect(self, step: str, verdicts: Sequence[Verdict]) -> None:
        """Keep the verdicts in run.json, too."""
        __tracebackhide__ = True
        self.progress("")
        verdicts = self.told_apart(step, verdicts)
        self.run.add_verdicts(step, [asdict(verdict) for verdict in verdicts])
        self.fail_or_skip(verdicts, self.compared(step, verdicts))

    def limited(self, step: str, error: RateLimited) -> None:
        """Keep that verdict, too."""
        __tracebackhide__ = True
        self.expect(step, [refused_by_limit(step, error)])

    def reported(self, step: str, report: pytest.TestReport) -> None:
        """Keep the outcome of a step's test."""
        super().reported(step, report)
        self.progress("")
        if report.when == "call" or report.outcome != "passed":
            unbegun = report.when == "setup" and report.failed
            if not (unbegun and self.run.keep_earlier(step, report.longreprtext)):
                self.run.finish_step(step, outcome=report.outcome)
            with contextlib.suppress(ArtifactError):  # `finish` tries again, and tells
                self.run.save_soon()

    def figures(self) -> Mapping[str, float]:
        """The numbers of the artifacts that this run has made."""
        found: dict[str, float | None] = {}
        for name, parts in FIGURES.items():
            if self.run.owns(name):
                artifact = parse(FILES[name], self.run.read(name), name)
                found |= {key: value(artifact) for key, value in parts.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _notes(self) -> list[tuple[str, str]]:
        return self.run.notes()

    def _places(self) -> list[tuple[str, str]]:
        return [("files", str(self.run.path)), *super()._places()]

    def finish(self, is_whole: bool) -> str | None:
        """Write run.json a last time; give what went wrong."""
        self.run.facts["ended"] = is_whole
        self.run.facts["waits"] = {"times": len(self._waits_s), "seconds": sum(self._waits_s)}
        self.run.facts["costs"] = {"requests": self._costs.requests, "tokens": self._costs.tokens}
        try:
            self.run.save()
        except LatencyError as error:
            return str(error)
        path = self.settings.page or self.run.path / PAGE
        return self._make_page(path, self.run.path)

    def end(self) -> None:
        """Give the directory free."""
        self.run.close()
