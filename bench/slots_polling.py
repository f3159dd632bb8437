"""Does asking /slots change when a cancelled answer stops? Two beats of asking, interleaved.

`python bench/slots_polling.py [GGUF]`. After a close in generation the slot itself says how many
tokens it holds when it is idle; the pieces received until the close are known: what lies between
was generated after the close, and no clock is needed to see whether asking disturbs.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pytest_llm_latency.evidence.derive import derive
from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import free_port, guarded
from pytest_llm_latency.steps.cancel.watch import POLL_IN_GENERATION_S
from pytest_llm_latency.wire.client import Client

CLOSES = 12
ONE_LOOK_S = 1.5
QUESTION = [{"role": "user", "content": "List the numbers from 1 to 300, separated by commas."}]


def tokens_after_close(client: Client, pause_s: float, number: int) -> int:
    """Close 0.4 s after the request, ask every `pause_s` until the slot is idle."""
    messages = [{"role": "system", "content": f"Call {number}."}, *QUESTION]
    recording = client.record(messages, 512, True, close_at_ms=400.0)
    while True:
        time.sleep(pause_s)
        slot = json.loads(client.get("/slots").body)[0]
        if not slot["is_processing"]:
            break
    prompt = client.post("/apply-template", {"messages": messages}).json()["prompt"]
    asked = {"content": prompt, "add_special": True, "parse_special": True}
    prompt_tokens = len(client.post("/tokenize", asked).json()["tokens"])
    return int(slot["n_prompt_tokens"]) - prompt_tokens - len(derive(recording).pieces)


def main() -> None:
    """Print the tokens that were generated after the close, for either beat."""
    gguf = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    found: dict[float, list[int]] = {POLL_IN_GENERATION_S: [], ONE_LOOK_S: []}
    with tempfile.TemporaryDirectory() as directory:
        command = own_command("local", gguf, port, ())
        with guarded(command, Path(directory) / "log", url, 120.0, lambda _: None):
            client = Client(url)
            for number in range(CLOSES):
                for pause_s, counts in found.items():
                    counts.append(tokens_after_close(client, pause_s, number))
    for pause_s, counts in found.items():
        print(
            f"/slots asked every {pause_s * 1000:g} ms: {statistics.mean(counts):.2f} tokens "
            f"after the close (each: {counts})"
        )


if __name__ == "__main__":
    main()
