"""The directory that a run writes: its lock, whole files or none, and run.json.

It knows names, hashes and run ids, and nothing of what the artifacts mean.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArtifactError, ConfigError
from ..sse import json_text, now
from .artifacts import CHUNKS, FILES
from .files import Directory
from .lock import lock, new_run_id
from .recording import Recording
from .recording import dump as dump_recording
from .run_index import (
    DEEPEST,
    EVIDENCE,
    FORMAT,
    MAX_RUN_BYTES,
    RUN_FILE,
    SECTIONS,
    VERSION,
    depth_of,
    is_index,
)
from .strictjson import load_json

SERVER_LOG = "server.log"
LIVE_LOG = ".server.log"
# What a run writes beside its evidence.
WRITTEN = (RUN_FILE, *FILES, CHUNKS, "sse_raw.txt", "sse.py", SERVER_LOG)
EVIDENCE_SUFFIX = ".jsonl"
MAX_ARTIFACT_BYTES = 1024 * 1024 * 1024
ERROR_CHARACTERS = 10_000
# One that takes no longer is done each time, a longer one a tenth of the time.
CHEAP_SAVE_S = 0.02
SAVES_APART = 10


class RunDirectory:
    """The open directory of this run. Everything that is written goes through it."""

    def __init__(
        self, path: Path, facts: Mapping[str, Any], source: str = "--llm-artifacts"
    ) -> None:
        """Create and lock `path`. Raises ConfigError, which names `source`, if it cannot be
        used or is in use, or something lies in it where the run would write."""
        self.path = path.absolute()
        self.run_id = new_run_id()
        self._files = Directory(self.path)
        self._lock = lock(self._files, source)
        try:
            self._index = self._read_index()
            self._check_places()
        except ArtifactError as error:
            self.close()
            raise ConfigError(f"{source}: {self.path}: {error}") from None
        except BaseException:
            self.close()
            raise
        self._ours: dict[str, dict[str, Any]] = {}  # the entries of the steps of this run
        self._begun: set[str] = set()  # the steps whose evidence this run writes anew
        self._staged: dict[str, dict[str, Any]] = {}  # files of steps under way, by step
        self._pending: dict[str, dict[str, bytes]] = {}  # their artifacts, until commit_step
        self._saved_at = self._save_took = 0.0  # seconds
        self._index["run"] = self.run_id
        self._index["runs"][self.run_id] = dict(facts)

    def close(self) -> None:
        """Give the directory free."""
        os.close(self._lock)

    def _read_index(self) -> dict[str, Any]:
        """The run.json of the directory; a fresh one where it has none. One that is none of ours,
        or cannot be read as one, is kept under another name. Raises ArtifactError."""
        index: dict[str, Any] = {"format": FORMAT, "version": VERSION, "run": ""}
        index |= {name: {} for name in SECTIONS}
        if not self._files.exists(RUN_FILE):
            return index
        content = self._files.read(RUN_FILE, MAX_RUN_BYTES)
        with contextlib.suppress(ArtifactError, ValueError):
            found = load_json(content.decode("utf-8"), RUN_FILE)
            if depth_of(found) <= DEEPEST and is_index(found):
                json_text(found)  # what cannot be written again, as NaN, is none of ours
                return {**index, **found}
        self._files.rename(RUN_FILE, f"{RUN_FILE}.before-{self.run_id}")
        return index

    def _check_places(self) -> None:
        """Raise ArtifactError where something else than files of a run lies where it writes."""
        for name in (*WRITTEN, *(f".{name}.part" for name in WRITTEN), LIVE_LOG):
            self._files.check(name)
        self._files.check_tree(EVIDENCE, EVIDENCE_SUFFIX)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of this run: versions, options, server. Saved by `save`."""
        facts: dict[str, Any] = self._index["runs"][self.run_id]
        return facts

    def note(self, step: str, text: str) -> None:
        """Keep a remark that changes no verdict."""
        self._entry(step)["notes"].append(text)

    def notes(self) -> list[tuple[str, str]]:
        """(step, remark) of this run."""
        return [(step, note) for step, entry in self._ours.items() for note in entry["notes"]]

    def begin_step(self, step: str) -> None:
        """Begin to measure a step anew. What an earlier run left of it stays until
        `commit_step`, so that a measurement that fails loses nothing."""
        self._begun.add(step)
        self._ours[step] = {"run": self.run_id, "notes": []}
        self._staged[step] = {}
        self._pending[step] = {}
        self._remove_evidence(self._staging(step))

    def commit_step(self, step: str) -> None:
        """Replace what an earlier run left of the step by what this one measured."""
        self._files.write(self._pending[step])
        staged, final = self._staged[step], f"{EVIDENCE}/{step}"
        self._keep_staged(step, final)
        for name in self.names(step):
            entry = self._index["artifacts"].pop(name)
            if name not in staged and not name.startswith(f"{final}/"):
                self._remove_unchanged(name, entry["sha256"])
        self._index["artifacts"].update(self._staged.pop(step))
        self._index["failures"].pop(step, None)
        self._index["steps"][step] = self._ours[step]

    def fail_step(self, step: str, error: str, limited: bool = False) -> None:
        """Keep what was recorded of a step that could not be measured beside what an earlier
        run left of it; `limited`: because the server limits how often it is asked."""
        self._staged.pop(step, None)
        self._ours[step] |= {"error": error[:ERROR_CHARACTERS], "rate_limited": limited}
        self._index["failures"][step] = self._ours[step]
        self._keep_staged(step, f"{EVIDENCE}/{step}.failed")

    def keep_earlier(self, step: str, error: str) -> bool:
        """Where a step could not even begin, and an earlier run has measured it: keep what that
        left, and beside it that this run failed. False: there is nothing to keep."""
        if step in self._ours or step not in self._index["steps"]:
            return False
        failed = {"run": self.run_id, "notes": [], "error": error[:ERROR_CHARACTERS]}
        self._index["failures"][step] = failed
        return True

    def _keep_staged(self, step: str, final: str) -> None:
        self._remove_evidence(final)
        if self._files.exists(self._staging(step)):
            self._files.rename(self._staging(step), final)

    def _remove_evidence(self, name: str) -> None:
        self._files.remove_tree(name, EVIDENCE_SUFFIX)

    def _remove_unchanged(self, name: str, sha256: str) -> None:
        """What a run wrote, but nothing that anybody has put in its place since."""
        with contextlib.suppress(ArtifactError):
            if hashlib.sha256(self.read_bytes(name)).hexdigest() == sha256:
                self._files.remove(name)

    def finish_step(self, step: str, **fields: Any) -> None:
        """Add `fields` (outcome, facts) to the step's entry."""
        self._entry(step).update(fields)

    def forget_verdicts(self, step: str) -> None:
        """Drop what was judged in a step, whose test runs again."""
        self._ours.get(step, {}).pop("verdicts", None)

    def add_verdicts(self, step: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Add verdicts to the step's entry."""
        self._entry(step).setdefault("verdicts", []).extend(verdicts)

    def _entry(self, step: str) -> dict[str, Any]:
        """This run's entry of a step. One that no lab step announced (a user's own test) goes
        into run.json as it is."""
        if step not in self._ours:
            self._ours[step] = {"run": self.run_id, "notes": []}
            self._index["steps"][step] = self._ours[step]
            self._index["failures"].pop(step, None)
        return self._ours[step]

    def _staging(self, step: str) -> str:
        return f"{EVIDENCE}/{step}.new"

    def names(self, step: str) -> list[str]:
        """The files of a step in run.json."""
        artifacts = self._index["artifacts"]
        return [name for name, entry in artifacts.items() if entry["step"] == step]

    def write(self, name: str, data: str | bytes, step: str) -> None:
        """Write an artifact whole or not at all. Raises ArtifactError."""
        content = data.encode("utf-8") if isinstance(data, str) else data
        staged = self._staged.get(step)
        evidence = f"{EVIDENCE}/{step}/"
        failed = self._index["failures"].get(step)
        if name.startswith(evidence) and failed is not None and failed is self._ours.get(step):
            return  # of a thread that has outlived its step: an earlier run's files stay
        if staged is None:
            self._files.write({name: content})
        elif name.startswith(evidence):
            place = f"{self._staging(step)}/{name.removeprefix(evidence)}"
            self._files.write({place: content})
        else:
            self._pending[step][name] = content
        entries = self._index["artifacts"] if staged is None else staged
        entries[name] = {
            "run": self.run_id,
            "step": step,
            "sha256": hashlib.sha256(content).hexdigest(),
        }

    def keep(self, recording: Recording) -> None:
        """Write a recording's evidence file, named after its label."""
        self.keep_text(f"{recording.label}.jsonl", dump_recording(recording))

    def keep_text(self, label: str, text: str | bytes) -> None:
        """Write an evidence file; `label` begins with the step's name."""
        step = label.partition("/")[0]
        if step not in self._begun:
            # A user's own test, which no lab step announced: its evidence begins anew.
            self._begun.add(step)
            self._entry(step)
            self._remove_evidence(f"{EVIDENCE}/{step}")
            for name in self.names(step):
                del self._index["artifacts"][name]
        self.write(f"{EVIDENCE}/{label}", text, step)

    def owns(self, name: str) -> bool:
        """Whether this run made the artifact."""
        entry = self._index["artifacts"].get(name)
        return entry is not None and entry["run"] == self.run_id

    def read(self, name: str) -> str:
        """The text of an artifact. Raises ArtifactError."""
        try:
            return self.read_bytes(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"cannot read {self.path / name}: {error}") from None

    def read_bytes(self, name: str) -> bytes:
        """The bytes of an artifact. Raises ArtifactError."""
        return self._files.read(name, MAX_ARTIFACT_BYTES)

    def remove(self, name: str) -> None:
        """Remove a file that is no artifact; it may be missing. Raises ArtifactError."""
        self._files.remove(name)

    def of_one_run(self, names: Iterable[str]) -> str | None:
        """The run that made all of these files, None if one is missing, changed or another's."""
        runs = set()
        for name in names:
            entry = self._index["artifacts"].get(name)
            if entry is None:
                return None
            try:
                content = self.read_bytes(name)
            except ArtifactError:
                return None
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                return None
            runs.add(entry["run"])
        return runs.pop() if len(runs) == 1 else None

    def save_soon(self) -> None:
        """Write run.json, as cheap as that is: after each of a thousand tests it takes a while, and
        may wait for a later one. Raises ArtifactError."""
        if now() - self._saved_at >= SAVES_APART * (self._save_took - CHEAP_SAVE_S):
            self.save()

    def save(self) -> None:
        """Write run.json. Facts of runs of which nothing is left are dropped. Raises
        ArtifactError."""
        begun = now()
        sections = (self._index[name] for name in ("steps", "failures", "artifacts"))
        alive = {entry["run"] for section in sections for entry in section.values()}
        alive.add(self.run_id)
        runs = {run: facts for run, facts in self._index["runs"].items() if run in alive}
        self._index["runs"] = runs
        try:
            content = (json_text(self._index, indent=2) + "\n").encode("utf-8")
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"cannot write {self.path / RUN_FILE}: {error}") from None
        if len(content) > MAX_RUN_BYTES:
            raise ArtifactError(
                f"{RUN_FILE}: {len(content):,} bytes are more than {MAX_RUN_BYTES:,}"
            )
        self._files.write({RUN_FILE: content})
        self._saved_at = now()
        self._save_took = self._saved_at - begun
