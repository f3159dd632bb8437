"""Which server and documents the options want, and whether the server can be asked so."""

from __future__ import annotations

from pathlib import Path

from .. import sse
from ..errors import ConfigError
from ..servers.capabilities import Capabilities
from ..servers.choice import Wanted
from .settings import Settings


def wanted_server(settings: Settings, args: tuple[str, ...]) -> Wanted:
    """The server that the options want."""
    return Wanted(
        settings.server,  # type: ignore[arg-type]
        settings.urls[0] if settings.urls else None,
        settings.gguf,
        args,
        settings.start_timeout_s,
    )


def kb_directory(settings: Settings) -> tuple[Path, str]:
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


def check_model_named(url: str, offered: Capabilities, flag: str) -> None:
    """Raise ConfigError where the look at a server failed and it has models to choose from."""
    if offered.stream_error is None or offered.dialect.model is not None or not offered.models:
        return
    if offered.rate_limited:
        return  # the steps say so
    models = list(map(sse.shown_words, offered.models[:8]))
    raise ConfigError(
        f"{url}: {offered.stream_error}; name one of its models: {flag}={models[0]} "
        f"(it has {', '.join(models)})"
    )
