"""A session that has clients: what a step measures with, and how what they record is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from .. import sse
from ..evidence.recording import Recording
from ..plan import Plan
from ..report.terminal import ProgressLine
from ..servers.capabilities import Capabilities
from ..servers.choice import Kind, Server
from ..steps.bench import Bench
from ..steps.legs import UPSTREAM
from ..wire.channel import Deadlines
from ..wire.client import Client
from ..wire.costs import Costs
from ..wire.dialect import Dialect
from ..wire.stamps import StampError
from .base import Session
from .settings import Settings


class ClientSession(Session):
    """What a session that measures asks with. `_stamps` is None until it is known what stamps are
    worth here, or where they cannot be measured."""

    def __init__(self, config: pytest.Config, settings: Settings, costs: Costs) -> None:
        """`costs` are those of all targets. Raises ConfigError."""
        super().__init__(config, settings)
        self._costs = costs
        self._progress = ProgressLine(config, self.language)
        self._stamps: StampError | None = None
        self._documents: Sequence[str] = ()
        self._offers = Capabilities(Dialect(settings.model, settings.body))
        self._behind_offers = Capabilities(Dialect(settings.upstream_model, settings.body))
        self._masked_told = False
        self._waits_s: list[float] = []  # what the server's limits made it wait
        self._patched_in: set[str] = set()  # the steps whose notes tell of a stopped clock

    def client(self, server: Server) -> Client:
        """A client whose recordings become evidence."""
        return self._client(
            server.base_url,
            self._key_for(server.kind),
            headers=self.settings.headers,
            dialect=self._offers.dialect,
            keep=self._keep,
        )

    def _key_for(self, kind: Kind) -> str | None:
        """The key is for the server at --llm-url alone."""
        return self.settings.api_key if kind == "url" else None

    def _plain_client(self, base_url: str, kind: Kind) -> Client:
        """One that keeps nothing, for a server of which nothing is known."""
        return self._client(
            base_url,
            self._key_for(kind),
            headers=self.settings.headers,
            dialect=self._offers.dialect,
        )

    def _client(self, base_url: str, api_key: str | None = None, **options: Any) -> Client:
        settings = self.settings
        return Client(
            base_url,
            api_key=api_key,
            ca=settings.ca,
            deadlines=Deadlines(**settings.deadlines_s),
            max_bytes=settings.max_bytes,
            spend=self._costs.spend,
            wait=self._wait,
            jitter_ms=self._stamps.jitter_ms if self._stamps else 0.0,
            mask=self.mask,
            **options,
        )

    def _wait(self, label: str, seconds: float) -> None:
        """Wait as a limit of the server wants it."""
        step = label.partition("/")[0]
        if not self._waits_s:
            self.run.note(
                step,
                f"the server limits how often it is asked: waited {seconds:g} s and asked again, "
                "and so on in this run; no wait is part of a time",
            )
        self._waits_s.append(seconds)
        self.progress(
            f"{step}, waiting {seconds:.0f} s, since the server limits how often it is asked"
        )
        sse.pause(seconds)

    def _keep(self, recording: Recording) -> None:
        self._costs.settle(recording)
        self.run.keep(recording)
        self._tell_masked(recording.label.partition("/")[0])
        step, patched = recording.label.partition("/")[0], sse.patched_clock()
        if patched is not None and step not in self._patched_in:
            self._patched_in.add(step)
            self.run.note(
                step,
                f"the clock of this process is not the system's ({patched}): what is measured here "
                "is timed by the functions that were there when pytest began",
            )

    def _tell_masked(self, step: str) -> None:
        """Say once that evidence is not what was received."""
        if self.mask.places and not self._masked_told:
            self._masked_told = True
            self.run.note(
                step,
                "a secret (the API key, a header of yours) stood in what was received or logged: "
                "stars stand for it in the files, and in what is derived from them",
            )

    def _to_upstream(self) -> Client:
        """A client of the server behind, for measurements of their own."""
        return self._upstream_client(prefix=UPSTREAM, dialect=self._behind_offers.dialect)

    def _upstream_client(self, **options: Any) -> Client:
        """With a key of its own; the headers are for the server at --llm-url alone."""
        settings = self.settings
        assert settings.upstream_url is not None
        return self._client(
            settings.upstream_url, settings.upstream_api_key, keep=self._keep, **options
        )

    def _behind(self, server_client: Client) -> tuple[Client, Capabilities]:
        """Who is asked about the state of the server: the one behind, where there is one."""
        if self.settings.upstream_url is None:
            return server_client, self._offers
        return self._upstream_client(), self._behind_offers

    def progress(self, text: str) -> None:
        """Show what is being done."""
        self._progress.show(text)

    def _bench(self, client: Client, plan: Plan) -> Bench:
        if self._offers.reasoning is not None:
            plan = plan.with_room_for_reasoning()
        return Bench(
            client.of_a_step(),
            self._offers,
            *self._behind(client),
            plan,
            self._documents,
            self.progress,
            self.run.note,
            self.run.keep_text,
            self.settings.sentence,
            self.settings.speech_wpm,
            self.settings.rounds,
        )

    def _control(self, plan: Plan) -> Bench | None:
        """What measures the server behind, its evidence apart; None where there is none."""
        if self.settings.upstream_url is None:
            return None
        client = self._to_upstream()
        bench = self._bench(client, plan)
        return replace(
            bench,
            offers=self._behind_offers,
            behind=client,
            behind_offers=self._behind_offers,
            progress=lambda text: self.progress(f"at the server behind: {text}"),
            note=lambda step, text: self.run.note(UPSTREAM + step, text),
            keep_text=lambda label, text: self.run.keep_text(UPSTREAM + label, text),
            rounds=1,  # it is not compared with a baseline
        )
