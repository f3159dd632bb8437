"""A pytest session that measures: options, server, run directory and log held together."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from . import kb
from .client import Client
from .errors import ConfigError, LatencyError
from .lab import LiveLab
from .options import Settings
from .plan import Plan
from .relations import Verdict
from .report.terminal import ProgressLine, inert, write_summary
from .results import Lab
from .rundir import RunDirectory
from .server.logs import FileLog, RunLog
from .server.ways import Server, Wanted, choose, describe, open_server
from .session import Session, given_log
from .stamps import measure_stamps
from .steps import Bench, check_context, check_plan

LONG_PROMPT_STEPS = frozenset(("prefill", "cache", "cancel", "report"))
LIVE_LOG = ".server.log"


class LiveSession(Session):
    """Measures a server; made when the collection shows that this run measures."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        steps: frozenset[str],
    ) -> None:
        """Check the options against the world and lock the directory; `steps` are selected.

        Raises ConfigError, before anything was started.
        """
        super().__init__(config, settings)
        self._documents = kb.read(*_kb_directory(settings))
        choose(_wanted(settings, settings.server_args))
        given = given_log(settings)
        if isinstance(given, FileLog):
            given.size()
        self._steps = steps
        self._progress = ProgressLine(config)
        self._run_log: RunLog | None = None
        self._server_line = ""
        self._stamps = measure_stamps()
        facts = _facts(settings) | {"stamps": self._stamps and asdict(self._stamps)}
        self._run = RunDirectory(settings.artifacts, facts, settings.sources["artifacts"])

    @property
    def run(self) -> RunDirectory:
        """The directory of this run."""
        return self._run

    def header(self) -> list[str]:
        """Which server is meant, and where the files go."""
        wanted = _wanted(self.settings, self.settings.server_args)
        stamps = self._stamps.words() if self._stamps else "the error of stamps is not known"
        return [
            f"llm-latency: server: {describe(wanted)}",
            f"llm-latency: clock: {stamps}",
            f"llm-latency: files: {self.run.path}",
        ]

    @contextlib.contextmanager
    def open_server(self, args: tuple[str, ...], plan: Plan) -> Iterator[Server]:
        """Have the server, look at it, and check that the longest prompt fits."""
        check_plan(plan, self._documents)
        live_log = self.run.path / LIVE_LOG
        try:
            with open_server(_wanted(self.settings, args), live_log, self.progress) as server:
                self._run_log = self._open_log(server)
                client = self.client(server)
                self._look_at(client, server)
                if self._steps & LONG_PROMPT_STEPS:
                    check_context(self._bench(client, plan))
                yield server
                self._save_log()
        finally:
            self.progress("")
            live_log.unlink(missing_ok=True)

    def _open_log(self, server: Server) -> RunLog | None:
        log = given_log(self.settings) or server.log
        return RunLog(log) if log is not None else None

    def _save_log(self) -> None:
        """The log's last part, where this run's cancel step stands on it."""
        if self._run_log is not None and self.run.owns("server.log"):
            try:
                log = self._run_log.read()
                # Rotated since, it is another: the cancel step stands on what it saved.
                if log.startswith((self.run.path / "server.log").read_bytes()):
                    self.run.write("server.log", log, "cancel")
            except (LatencyError, OSError) as error:
                self.run.note("cancel", f"the end of the log is missing: {error}")

    def _look_at(self, client: Client, server: Server) -> None:
        """Keep and show what the server says of itself."""
        facts: dict[str, Any] = {"url": server.base_url, "kind": server.kind}
        props = client.get("/props").json()
        if isinstance(props, dict):
            settings = props.get("default_generation_settings")
            facts["model"] = props.get("model_path")
            facts["n_ctx"] = settings.get("n_ctx") if isinstance(settings, dict) else None
            facts["slots"] = props.get("total_slots")
            facts["build"] = props.get("build_info")
        self.run.facts["server"] = facts
        shown = [f"{facts['url']} ({facts['kind']})"]
        if facts.get("model"):
            shown.append(f"model {Path(str(facts['model'])).name}")
        shown += [
            f"{name} {facts[name]}" for name in ("n_ctx", "slots", "build") if facts.get(name)
        ]
        self._server_line = ", ".join(shown)
        if self._progress.active:
            with self._progress.uncaptured():
                self._reporter.ensure_newline()
                self._reporter.write_line(f"server: {inert(self._server_line)}")

    def client(self, server: Server) -> Client:
        """A client whose recordings become evidence."""
        own_key = self.settings.api_key if server.kind == "url" else None
        return Client(
            server.base_url,
            api_key=own_key,
            model=self.settings.model,
            max_bytes=self.settings.max_bytes,
            keep=self.run.keep,
            jitter_ms=self._stamps.jitter_ms if self._stamps else 0.0,
        )

    def lab(self, plan: Plan, client: Callable[[], Client]) -> Lab:
        """The lab; `client` is called when a step measures."""
        return LiveLab(self.run, lambda: self._bench(client(), plan), lambda: self._run_log)

    def _bench(self, client: Client, plan: Plan) -> Bench:
        return Bench(
            client,
            plan,
            self._documents,
            self.progress,
            self.run.note,
            self.run.keep_text,
            self.settings.sentence,
        )

    def progress(self, text: str) -> None:
        """Show what is being done."""
        self._progress.show(text)

    def expect(self, step: str, verdicts: Sequence[Verdict]) -> None:
        """Keep the verdicts in run.json, too."""
        __tracebackhide__ = True
        self.progress("")
        verdicts = [replace(verdict, step=step) for verdict in verdicts]
        self.run.add_verdicts(step, [asdict(verdict) for verdict in verdicts])
        super().expect(step, verdicts)

    def reported(self, step: str, report: pytest.TestReport) -> None:
        """Keep the outcome of a step's test."""
        self.progress("")
        if report.when == "call" or report.outcome != "passed":
            self.run.finish_step(step, outcome=report.outcome)

    def summarize(self, reporter: pytest.TerminalReporter) -> None:
        """Write the table."""
        facts = f"server: {self._server_line}" if self._server_line else ""
        notes = self.run.notes()
        write_summary(reporter, facts, self.basis, self._verdicts, notes, self.run.path)

    def finish(self) -> str | None:
        """Write run.json a last time; give what went wrong."""
        try:
            self.run.save()
        except LatencyError as error:
            return str(error)
        return None

    def end(self) -> None:
        """Give the directory free."""
        self.run.close()


def _wanted(settings: Settings, args: tuple[str, ...]) -> Wanted:
    return Wanted(
        settings.server,  # type: ignore[arg-type]
        settings.url,
        settings.api_key,
        settings.gguf,
        args,
        settings.start_timeout_s,
    )


def _kb_directory(settings: Settings) -> tuple[Path, str]:
    """(the knowledge base, the name of its option)."""
    if settings.kb is not None:
        return settings.kb, settings.sources["kb"]
    try:
        import test_llm_latency
    except ImportError:
        raise ConfigError(
            "the lab's documents are not installed; name a knowledge base: --llm-kb DIR"
        ) from None
    return Path(str(test_llm_latency.__file__)).with_name("kb"), "the lab's own documents"


def _facts(settings: Settings) -> dict[str, Any]:
    """What a reader of run.json needs to know of this run, secrets excluded."""
    packages = ("pytest-llm-latency", "pytest", "requests", "urllib3", "xllamacpp")
    versions = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "versions": versions,
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "options": settings.shown(),
    }
