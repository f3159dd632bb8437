"""Serves a GGUF file with llama.cpp's own HTTP server, in this process, until it is killed.

A program of its own (`python embedded_main.py --model FILE --port N`): the server must not
run in the process that measures. It must not import the package: it runs by its path. Its
options are spelled as llama-server's.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

# Run by path, the folder of this file leads sys.path and would shadow other modules.
sys.path.pop(0)


def main() -> int:
    """Start the server; its log goes to stderr."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("-c", "--ctx-size", type=int, default=8192)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-b", "--batch-size", type=int, default=512)
    parser.add_argument("--cache-ram", type=int, default=0, metavar="MIB")
    parser.add_argument("--no-cache-prompt", action="store_true")
    parser.add_argument("--no-slots", action="store_true")
    parser.add_argument("--swa-full", action="store_true")
    options = parser.parse_args()

    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    # Small batches: a cancel during prefill is noticed between two of them.
    params.n_batch = options.batch_size
    params.n_ubatch = min(options.batch_size, 512)
    params.cache_ram_mib = options.cache_ram
    params.cache_prompt = not options.no_cache_prompt
    params.swa_full = options.swa_full
    params.endpoint_slots = not options.no_slots
    params.endpoint_props = True
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    if "LLAMA_API_KEY" in os.environ:
        params.api_keys = [os.environ["LLAMA_API_KEY"]]
    try:
        server = xllamacpp.Server(params)
    except Exception as error:  # noqa: BLE001 - the binding raises whatever C++ threw
        print(f"E cannot serve {options.model}: {error}", file=sys.stderr)
        return 1
    print(f"I serving on {server.listening_address}", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
