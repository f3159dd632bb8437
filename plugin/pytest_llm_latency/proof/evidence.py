"""A run's files as its proof needs them: recordings by leg, and what run.json says of the run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import kb, sse
from ..errors import LatencyError
from ..evidence.activity import Poll
from ..evidence.artifacts import check
from ..evidence.recording import Recording
from ..evidence.run_index import EVIDENCE, RUN_FILE, RunIndex
from ..plan import Plan
from ..steps.legs import UPSTREAM
from ..wire.dialect import Dialect

# What stands in evidence where a secret was.
_MASKS = ("<secret>", "********")
OFFERED = ("models", "refused_fields", "max_tokens_name", "api_path")


def file_of(step: str, leg: str) -> str:
    """A recording's place in the directory."""
    return f"{EVIDENCE}/{step}/{leg}.jsonl"


def lab_step(name: str) -> str:
    """The step that was measured, be it at the server behind."""
    return name.removeprefix(UPSTREAM)


def is_streamed(recording: Recording) -> bool:
    """Whether a recording is of a chat, and no plain question, whose answer is not timed."""
    return recording.connect_ms is not None or recording.request.path.endswith(sse.CHAT)


def is_masked(text: str) -> bool:
    """Whether a secret may have stood in a text: it cannot be compared."""
    return any(mask in text for mask in _MASKS)


@functools.cache
def our_version() -> str | None:
    """As run.json has it; None: this is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("pytest-llm-latency")
    return None


@functools.cache
def lab_documents() -> tuple[str, ...] | None:
    """The lab's own documents; None where they are not installed."""
    try:
        import test_llm_latency

        return kb.read(Path(str(test_llm_latency.__file__)).with_name("kb"), "the lab's documents")
    except (ImportError, LatencyError):
        return None


@dataclass(frozen=True)
class Run:
    """What run.json says of a run. `plan` is None where it is of before plans were kept: then
    what it asked is believed, as long as the requests agree with each other. `is_ours`: made by
    this very version, whose rules are known."""

    facts: Mapping[str, Any]
    plan: Plan | None
    is_ours: bool

    @property
    def options(self) -> Mapping[str, Any]:
        return self.facts.get("options") or {}

    @property
    def server(self) -> Mapping[str, Any]:
        return self.facts.get("server") or {}

    def offers(self, behind: bool) -> Mapping[str, Any]:
        """What the server offers, or the one behind, which is asked about its state."""
        upstream = self.server.get("upstream")
        return (upstream if behind and upstream else self.server).get("offers") or {}

    def dialect(self, behind: bool) -> Dialect | None:
        """How the server is asked; None where run.json does not say."""
        offers, options = self.offers(behind), self.options
        if self.plan is None or any(name not in offers for name in OFFERED):
            return None
        model = options.get("upstream_model" if behind else "model")
        models = offers["models"]
        if model is None and len(models) == 1:
            model = models[0]
        refused = tuple(offers["refused_fields"])
        name, path = offers["max_tokens_name"], offers["api_path"]
        least = offers.get("min_tokens", 1)  # a run of before did not look for it
        return Dialect(model, options["body"], refused, name, least, path)

    @property
    def documents(self) -> tuple[str, ...] | None:
        """The knowledge base; None where it is not the lab's, or may be another version's."""
        is_lab = "kb" in self.options and self.options["kb"] is None
        return lab_documents() if self.is_ours and is_lab else None


@dataclass(frozen=True)
class Evidence:
    """A directory's index and files. `load` gives a step's recordings by leg, `load_polls` the
    polls of a close, `read` the bytes of a file; each raises ArtifactError."""

    index: RunIndex
    load: Callable[[str], Mapping[str, Recording]]
    load_polls: Callable[[str, str], list[Poll]]
    read: Callable[[str], bytes]
    _loaded: dict[str, Mapping[str, Recording]] = field(default_factory=dict)

    def has(self, name: str, step: str) -> bool:
        """Whether run.json has a step, of the same run as `step`."""
        index = self.index
        return index.has(name) and index.step(name)["run"] == index.step(step)["run"]

    def recordings(self, step: str) -> Mapping[str, Recording]:
        """A step's recordings by leg."""
        if step not in self._loaded:
            self._loaded[step] = self.load(step)
        return self._loaded[step]

    def known(self, step: str) -> Mapping[str, Recording]:
        """The same of another step: what is wrong with it is said there."""
        try:
            return self.recordings(step)
        except LatencyError:
            return {}

    def is_of_this_version(self, step: str) -> bool:
        """Whether the run that measured a step says that it was made by this very version."""
        facts = self.index.facts(str(self.index.step(step)["run"])) or {}
        version = facts.get("versions", {}).get("pytest-llm-latency")
        return version is not None and version == our_version()

    def run(self, step: str) -> Run:
        """The run that measured a step. Raises ArtifactError where its plan is none."""
        facts = self.index.facts(str(self.index.step(step)["run"])) or {}
        if "plan" not in facts:
            return Run(facts, None, False)
        plan = check(Plan, facts["plan"], f"{RUN_FILE}: plan")
        run = Run(facts, plan, self.is_of_this_version(step))
        if run.offers(behind=False).get("reasoning") is None:
            return run
        return Run(facts, plan.with_room_for_reasoning(), run.is_ours)
