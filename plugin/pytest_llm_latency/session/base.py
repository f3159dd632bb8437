"""What a pytest session of ours keeps together: settings, verdicts, outcomes, the table at the end.

One that measures is in `live.py`: a grading must not even import what can open a socket.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from ..compare.directory import Baseline
from ..compare.numbers import Number, numbers
from ..errors import ArtifactError, ConfigError, LatencyError, RateLimited
from ..evidence.run_index import FAILING
from ..lab.protocol import Lab
from ..language import language
from ..plan import Plan
from ..report import ci, is_page
from ..report.inert import inert
from ..report.terminal import Lines, write_summary
from ..steps.judges import JUDGES, MEASURED_BEHIND, is_supporting
from ..verdicts.blame import refused_by_limit, told_apart, upstream_words
from ..verdicts.verdict import Verdict
from .settings import Settings

if TYPE_CHECKING:
    from ..evidence.run_directory import RunDirectory
    from ..servers.choice import Server
    from ..wire.client import Client

NEEDS_A_SERVER = "this test measures a server, which a grading (--llm-grade) does not have"
NEEDS_REPORT = "it needs the extra `report`: pip install 'pytest-llm-latency[report]'"


class Expect(Protocol):
    """What the fixture `llm_expect` gives: judge verdicts, fail or skip with their words."""

    def __call__(self, *verdicts: Verdict) -> None: ...


class Session:
    """What every session has: settings, the verdicts, and words for them."""

    basis = "live"

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Raises ConfigError if the baseline is none."""
        self.settings = settings
        self.mask = settings.mask()
        self.language = language(settings.lang)
        self._baseline: Baseline | None = None
        if settings.baseline is not None:
            self._baseline = Baseline(
                settings.baseline,
                settings.sources["baseline"],
                settings.tolerance,
                settings.file_bytes,
                settings.grade or settings.artifacts,
            )
        self._reporter = config.pluginmanager.getplugin("terminalreporter")
        self._verdicts: list[Verdict] = []
        self._compared: list[Verdict] = []  # those among them that are beside the baseline
        self._begun: set[tuple[str, str]] = set()
        self._errors: dict[str, str] = {}  # of tests that failed without a verdict, by step
        self._lab: Lab | None = None
        self._page: str | None = None  # where it is, or why it is not
        if settings.page is not None and not page_can_be_made():
            raise ConfigError(f"{settings.sources['page']}: {NEEDS_REPORT}")

    def header(self) -> list[str]:
        """Lines for the top of the run."""
        return [self.language.say(self._baseline.header())] if self._baseline is not None else []

    @property
    def run(self) -> RunDirectory:
        """The directory of this run. Raises ConfigError where there is none."""
        raise ConfigError(NEEDS_A_SERVER)

    @contextlib.contextmanager
    def open_server(self, args: tuple[str, ...], plan: Plan) -> Iterator[Server]:  # noqa: ARG002
        """Have the server for the length of the block. Raises ConfigError where there is none."""
        raise ConfigError(NEEDS_A_SERVER)
        yield

    def client(self, server: Server) -> Client:
        """A client of the server."""
        raise NotImplementedError

    def lab(self, plan: Plan, client: Callable[[], Client]) -> Lab:
        """The eight steps; `client` is called when a step measures."""
        raise NotImplementedError

    def told_apart(self, step: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts, with what the server behind shows where one is broken."""
        named = [replace(verdict, step=step) for verdict in verdicts]
        if (
            self._lab is None
            or step not in MEASURED_BEHIND
            or all(v.outcome != "broken" for v in named)
        ):
            return named
        try:
            result = self._lab.upstream(step)
        except LatencyError as error:
            words = upstream_words(error)
            self.keep_upstream_words(step, words)
            return told_apart(named, words)
        return named if result is None else told_apart(named, JUDGES[step](result))

    def compared(self, step: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts beside the baseline, given those on the step itself; none without one."""
        if self._baseline is None or self._lab is None:
            return []
        found, facts = self._baseline.compare(step, self._lab, verdicts)
        if found:
            self.keep_compared(step, facts)
        return found

    def keep_compared(self, step: str, facts: Mapping[str, Any]) -> None:
        """Keep what was compared with the baseline."""

    def keep_upstream_words(self, step: str, words: str) -> None:
        """Keep why the server behind was not measured."""

    def expect(self, step: str, verdicts: Sequence[Verdict]) -> None:
        """Judge a step, or a test of one's own."""
        raise NotImplementedError

    def limited(self, step: str, error: RateLimited) -> None:
        """Judge a step whose requests a limit refused."""
        __tracebackhide__ = True
        self.fail_or_skip([refused_by_limit(step, error)], [])

    def fail_or_skip(self, verdicts: Sequence[Verdict], compared: Sequence[Verdict]) -> None:
        """Keep the verdicts, and those beside the baseline; fail on what is broken or (unless
        told to skip) inconclusive, skip on what cannot be measured, with their words."""
        __tracebackhide__ = True
        self._verdicts += [*verdicts, *compared]
        self._compared += compared
        failing = FAILING if self.settings.inconclusive == "fail" else ("broken",)
        say = self.language.say
        bad = [v for v in verdicts if v.outcome in failing]
        worse = [v for v in compared if v.outcome in failing]
        if bad or worse:
            lines = [inert(line) for verdict in bad[:3] for line in verdict.lines(say)]
            if len(bad) > 3:
                lines.append(say(f"(and {len(bad) - 3} more, in the table below)"))
            lines += [inert(line) for verdict in worse for line in verdict.lines(say)]
            pytest.fail("\n".join(lines), pytrace=False)
        unproven = [v for v in verdicts if v.outcome != "holds"]
        alone = len(unproven) == len(verdicts)
        decisive = (
            v for v in unproven if v.outcome != "not measurable" or not is_supporting(v.relation)
        )
        if (alone and unproven) or any(decisive):
            pytest.skip("; ".join(inert(say(v.cause.sentence)) for v in unproven if v.cause))

    def begin(self, step: str, test: str) -> None:
        """A test of a step begins. Where it has run before (a rerun, a repetition), what was
        judged then counts no more."""
        if (step, test) in self._begun:
            self.forget(step)
        self._begun.add((step, test))

    def forget(self, step: str) -> None:
        """Drop what was judged in a step."""
        self._verdicts = [one for one in self._verdicts if one.step != step]
        self._compared = [one for one in self._compared if one.step != step]
        self._errors.pop(step, None)

    def reported(self, step: str, report: pytest.TestReport) -> None:
        """A step's test has ended."""
        if report.failed and not any(verdict.step == step for verdict in self._verdicts):
            self._errors[step] = report.longreprtext

    def verdicts_of(self, step: str) -> list[Verdict]:
        """What was judged in a step."""
        return [verdict for verdict in self._verdicts if verdict.step == step]

    def numbers(self, step: str) -> dict[str, Number]:
        """All numbers of a step of the lab; none where it could not be measured."""
        result = self._lab.known(step) if self._lab is not None and step in JUDGES else None
        return numbers(step, result) if result is not None else {}

    def annotations(self) -> list[str]:
        """Lines by which a CI job points at what is wrong."""
        return ci.commands(self._verdicts, self._errors, self.language.say)

    def markdown(self, title: str) -> str:
        """The summary for a CI job."""
        facts, notes = self._facts_lines(), self._notes()
        return ci.markdown(title, facts, self._verdicts, self._errors, notes, self.language.say)

    def _facts_lines(self) -> list[str]:
        """What was measured, or graded, and compared."""
        if self._baseline is None:
            return []
        judged = [verdict.outcome != "not judged" for verdict in self._compared]
        return [
            f"baseline: {self._baseline.directory}; {sum(judged)} of {len(judged)} comparisons "
            "could be judged"
        ]

    def _notes(self) -> list[tuple[str, str]]:
        """(step, remark)."""
        return []

    def summarize(self, reporter: pytest.TerminalReporter | Lines, title: str) -> None:
        """Write the table."""
        facts, notes = self._facts_lines(), self._notes()
        places = self._places()
        write_summary(
            reporter, self.language, title, facts, self.basis, self._verdicts, notes, places
        )

    def figures(self) -> Mapping[str, float]:
        """Numbers of this run to put beside those of other targets."""
        return {}

    def finish(self, is_whole: bool) -> str | None:  # noqa: ARG002
        """Keep what the tests have added; give what went wrong. `is_whole`: nothing ended the run
        before its end."""
        return None

    def _make_page(
        self, path: Path, directory: Path, verdicts: Sequence[Verdict] | None = None
    ) -> str | None:
        """Write the page of a directory; give what went wrong."""
        if page_can_be_made():
            try:
                from ..report import page  # only here: it takes a while

                if os.path.lexists(path) and not is_page(path):
                    raise ArtifactError(f"{path} is no page of ours; give another: --llm-page=FILE")
                page.write(
                    path, directory, self.settings.file_bytes, verdicts, self._errors, self.language
                )
            except (ArtifactError, ImportError, OSError) as error:
                self._page = f"not made: {error}"
            else:
                self._page = str(path)
                return None
        else:
            self._page = f"not made: {NEEDS_REPORT}"
        # Nobody asked for it: then it decides nothing.
        return f"page {self._page}" if self.settings.page is not None else None

    def _places(self) -> list[tuple[str, str]]:
        """(what, where) of what was written."""
        return [("page", self._page)] if self._page is not None else []

    def end(self) -> None:
        """Give back what the session holds."""


def page_can_be_made() -> bool:
    """Whether the extra `report` is installed."""
    return all(map(importlib.util.find_spec, ("altair", "jinja2", "vl_convert")))


def step_of(item: pytest.Item) -> str:
    """The lab's step that an item is, else the item's own id."""
    marker = item.get_closest_marker("llm_latency")
    return str(marker.kwargs.get("step", item.nodeid)) if marker is not None else item.nodeid
