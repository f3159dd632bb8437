"""A client: a channel that asks for chat answers and gives recordings and timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import sse
from ..evidence.derive import derive
from ..evidence.recording import Recording
from ..evidence.timeline import Timeline
from .channel import Channel
from .exchange import Exchange


class Client(Channel):
    """A channel that asks for chat answers and reads them: its parameters are a `Channel`'s."""

    def record(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int = 64,
        cache_prompt: bool = True,
        *,
        label: str | None = None,
        close_at_ms: float | None = None,
        close_on_token: bool = False,
        waits: bool = True,
    ) -> Recording:
        """Ask, read the stream to its end (or close it, see `Exchange`), return the recording.

        `label` ("step/leg") names its evidence file; left out, the requests are numbered.
        """
        label = label or f"own/{next(self._numbers)}"
        body = sse.request_body(messages, max_tokens, cache_prompt)
        return Exchange(self, label, close_at_ms, close_on_token, waits=waits).run(body)

    def stream(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int = 64,
        cache_prompt: bool = True,
        **options: Any,
    ) -> Timeline:
        """`record`, derived: pieces, `ttft_ms`, `total_ms`, counts. Options as in `record`."""
        return derive(self.record(messages, max_tokens, cache_prompt, **options))
