"""Servers of other kinds, scripted: what each offers and refuses, as its own documentation has it.

They stream at a beat and keep count of what is running; they are no models of speed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scripted import Connection, Request, event

BEAT_S = 0.003


@dataclass
class Engine:
    """One kind. `paths` gives plain answers by path: (status, body), or a function of the engine
    that does. `refuses` names fields of a chat request that it answers with 400. `reasons` is how
    many tokens of reasoning come before the answer, under `reasoning_field`; `answers` how many
    of answer, at most, each saying `word`. One that `caches` reuses a prompt that it had before,
    or its front, and takes `cached_s` for it."""

    paths: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ("small",)
    needs_model: bool = False
    refuses: dict[str, str] = field(default_factory=dict)
    reasons: int = 0
    reasoning_field: str = "reasoning_content"
    answers: int = 10_000
    usage: bool = True
    characters_a_second: float = 100_000.0
    unknown: tuple[int, Any] = (404, {"error": {"message": "Not Found"}})
    word: str = "word"
    caches: bool = False
    reuses_parts: bool = True  # of a prompt; False: all of it or nothing, as with a sliding window
    cached_s: float = 0.012
    running: int = 0
    others: int = 0
    gauge: int = 0  # what /metrics says: as in vLLM, set when a request begins or goes on
    ones_refused: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def script(self, connection: Connection, request: Request) -> None:
        """For `scripted.serving`."""
        if request.target == "/v1/chat/completions":
            self._chat(connection, request.body)
            return
        answer = self.paths.get(request.target, self.unknown)
        if request.target == "/v1/models" and self.models:
            answer = 200, {"object": "list", "data": [{"id": name} for name in self.models]}
        if callable(answer):
            answer = answer(self)
        status, body = answer
        content = body if isinstance(body, str) else json.dumps(body)
        connection.head(status=f"{status} X", content_type="application/json")
        connection.send(content)

    def _chat(self, connection: Connection, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        for name, words in self.refuses.items():
            if name in body:
                connection.reply({"error": {"message": words}}, "400 Bad Request")
                return
        if self.needs_model and body.get("model") not in self.models:
            words = f"The model `{body.get('model')}` does not exist."
            connection.reply({"error": {"message": words}}, "404 Not Found")
            return
        if not body.get("messages"):
            connection.reply({"error": {"message": "messages: too short"}}, "422 X")
            return
        if self.ones_refused and body.get("max_tokens") == 1:
            connection.reply({"error": {"message": "slow down"}}, "429 Too Many Requests")
            return
        with self._lock:
            self.running += 1
            self.gauge = self.running + self.others
        try:
            self._stream(connection, body)
            self.gauge = self.running - 1 + self.others  # not where the client has gone
        finally:
            with self._lock:
                self.running -= 1

    def _stream(self, connection: Connection, body: dict[str, Any]) -> None:
        limit = body.get("max_tokens", body.get("max_completion_tokens", 16))
        connection.chunked_head()
        text = "".join(message["content"] for message in body["messages"])
        prompt, reused = len(text), self._reused(text, body)
        time.sleep((prompt - reused) / self.characters_a_second + (self.cached_s if reused else 0))
        tokens = min(limit, self.reasons + self.answers)
        for number in range(tokens):
            time.sleep(BEAT_S)
            if number < self.reasons:
                connection.chunk(chunk({"content": "", self.reasoning_field: "hm "}))
            else:
                connection.chunk(chunk({"content": f"{self.word}{number} "}))
        connection.chunk(chunk({}, "length"))
        if self.usage:
            details = {"cached_tokens": reused // 4}
            usage = {"prompt_tokens": prompt // 4, "completion_tokens": tokens}
            connection.chunk(
                event({"choices": [], "usage": {**usage, "prompt_tokens_details": details}})
            )
        connection.chunk("data: [DONE]\n\n")
        connection.send("0\r\n\r\n")

    def _reused(self, text: str, body: dict[str, Any]) -> int:
        """The characters of the prompt that need not be processed again."""
        if not self.caches or not body.get("cache_prompt", True):
            return 0
        fronts = [_same_front(text, old) for old in self.seen]
        self.seen.append(text)
        longest = min(max(fronts, default=0), len(text) - 4)
        enough = 0.5 * len(text) if self.reuses_parts else len(text) - 5
        return longest if longest > enough else 0


def _same_front(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    """An event of a chat stream."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def vllm() -> Engine:
    """vLLM: an empty /health, a gauge in /metrics, the model's name needed."""

    def metrics(engine: Engine) -> tuple[int, str]:
        return 200, (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0",model_name="small"}} {engine.gauge}.0\n'
        )

    return Engine({"/health": (200, ""), "/metrics": metrics}, needs_model=True)


def openai(first: str = "max_tokens") -> Engine:
    """A strict API: no field that it does not know, and another name for max_tokens; `first` is
    what it complains of first."""
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    refuses = {
        "max_tokens": words,
        "cache_prompt": "Unrecognized request argument supplied: cache_prompt",
    }
    return Engine(
        needs_model=True, refuses=dict(sorted(refuses.items(), key=lambda item: item[0] != first))
    )


def lm_studio() -> Engine:
    """LM Studio: 200 and an error for every path that it does not know."""
    return Engine(unknown=(200, {"error": "Unexpected endpoint or method."}))


def gateway() -> Engine:
    """A gateway with the chat alone, which refuses all else as if it were forbidden."""
    return Engine(models=(), unknown=(403, {"message": "Missing Authentication Token"}))


def router() -> Engine:
    """llama-server in router mode: its models have slots, it has none."""

    def slots(engine: Engine) -> tuple[int, Any]:
        return 200, [{"id": 0, "is_processing": engine.running > 0}]

    settings = {
        "default_generation_settings": {"n_ctx": 8192},
        "model_path": "small.gguf",
        "total_slots": 1,
    }
    return Engine(
        {
            "/health": (200, {"status": "ok"}),
            "/props": (200, {"role": "router", "default_generation_settings": {"n_ctx": 0}}),
            "/props?model=small": (200, settings),
            "/slots": (400, {"error": {"message": "model name is missing from the request"}}),
            "/slots?model=small": slots,
        },
        needs_model=True,
    )


KINDS: dict[str, Callable[[], Engine]] = {
    "vllm": vllm, "openai": openai, "lm_studio": lm_studio, "gateway": gateway, "router": router,
}  # fmt: skip
