"""What the server step gives, derived from its recordings. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...evidence.endpoints import is_offered
from ...evidence.recording import Reply
from ..answers import reply_of
from ..legs import Recordings, leg_of


@dataclass(frozen=True)
class ServerResult:
    """Step 1: the answers as received; `models` only where there is no /health."""

    health: Reply
    props: Reply
    models: Reply | None = None

    def files(self) -> list[tuple[str, Reply]]:
        """(name, answer) of those that are kept as files: a refusal, or an answer that is no JSON
        object, is in the evidence alone."""
        named = [("health.json", self.health), ("props.json", self.props)]
        return [
            (name, reply)
            for name, reply in named
            if reply.status == 200 and is_offered(reply) and isinstance(reply.json(), dict)
        ]


def server_result(recordings: Recordings) -> ServerResult:
    """From the recordings "health", "props", and "models" where it was asked for."""
    health, props = (reply_of(leg_of(recordings, name)) for name in ("health", "props"))
    return ServerResult(
        health, props, reply_of(recordings["models"]) if "models" in recordings else None
    )
