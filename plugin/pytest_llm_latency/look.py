"""The first look at a server: its name in a run's evidence, and what its one short stream asks."""

from __future__ import annotations

from .plan import Messages

LOOK_TOKENS = 8
HI: Messages = [{"role": "user", "content": "hi"}]
CAPABILITIES = "capabilities"  # the step of the look at the server, which is no test
