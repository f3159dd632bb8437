"""Measures the server step."""

from __future__ import annotations

from ...evidence.endpoints import is_offered
from ..bench import Bench
from .result import ServerResult, server_result


def measure_server(bench: Bench) -> ServerResult:
    """Step 1."""
    bench.progress("server")
    fetch = bench.client.fetch
    recordings = {
        "health": fetch("/health", "server/health"),
        "props": fetch(bench.offers.props or "/props", "server/props"),
    }
    if not is_offered(server_result(recordings).health):
        recordings["models"] = fetch(f"{bench.client.api_path}/models", "server/models")
    return server_result(recordings)
