"""What a refusal complains of, by the words of servers and gateways as public reports have them
(docs/field.md); and how the look at a server gets along with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from engines import Engine
from scripted import Connection, Request, serving

from pytest_llm_latency.evidence.recording import Reply
from pytest_llm_latency.servers.capabilities import Capabilities, look
from pytest_llm_latency.wire.client import Client
from pytest_llm_latency.wire.dialect import Dialect
from pytest_llm_latency.wire.refusals import Complaint, complaint_of, knows_the_chat

GPT_5 = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 8 instead."
SERDE = "Failed to deserialize the JSON body into the target type: unknown field `cache_prompt`, expected one of `messages`, `model`, `temperature`, `max_tokens`, `stream`, `stream_options` at line 1 column 130"
ECHO = {"messages": [], "max_tokens": 8, "cache_prompt": False, "stream_options": {}}


def error(message: str, **more: Any) -> Any:
    return {"error": {"message": message, **more}}


COMPLAINTS: dict[str, tuple[Any, Complaint]] = {
    "GPT-5": (error(GPT_5, param="max_output_tokens", code="integer_below_min_value"), Complaint(minimum=16)),
    "GPT-5 (OpenRouter)": (error("Provider returned error", code=400, metadata={"raw": json.dumps(error(GPT_5))}), Complaint(minimum=16)),
    "GPT-5 (LiteLLM)": (error(f"litellm.BadRequestError: OpenAIException - {json.dumps(error(GPT_5))}"), Complaint(minimum=16)),
    "the limit was reached": (error("Could not finish the message because max_tokens or model output limit was reached. Please try again with higher max_tokens."), Complaint(minimum=64)),
    "pydantic": ({"detail": [{"loc": ["body", "max_tokens"], "msg": "Input should be greater than or equal to 16", "input": 8}]}, Complaint(minimum=16)),
    "above": (error("max_tokens must be greater than 15"), Complaint(minimum=16)),
    "JSON Schema": (error("max_tokens: 8 is less than the minimum of 16"), Complaint(minimum=16)),
    "too small, and no more": (error("max_completion_tokens is too small"), Complaint(minimum=64)),
    "OpenAI": (error("Unrecognized request argument supplied: cache_prompt"), Complaint("cache_prompt")),
    "OpenAI's other name": (error("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", param="max_tokens"), Complaint("max_tokens")),
    "serde": (SERDE, Complaint("cache_prompt")),
    "serde, of another's": (SERDE.replace("cache_prompt", "top_k"), Complaint()),
    "vLLM": ({"object": "error", "message": f"[{{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra inputs are not permitted', 'input': {ECHO}}}]"}, Complaint("stream_options")),
    "a model (vLLM)": ({"object": "error", "message": f"[{{'type': 'missing', 'loc': ('body', 'model'), 'msg': 'Field required', 'input': {ECHO}}}]"}, Complaint(model=True)),
    "FastAPI": ({"detail": [{"type": "extra_forbidden", "loc": ["body", "cache_prompt"], "msg": "Extra inputs are not permitted", "input": ECHO}]}, Complaint("cache_prompt")),
    "an echo (LiteLLM)": (error(f"bad request: Request: {json.dumps(ECHO)}"), Complaint()),
    "an echo beside it": ({**error("no"), "request": ECHO}, Complaint()),
    "what is allowed": (error("Extra inputs. Allowed fields: messages, max_tokens"), Complaint()),
    "what is supported": (error("Unsupported parameter: 'cache_prompt'. Supported parameters: 'messages', 'max_tokens'"), Complaint("cache_prompt")),
    "Bedrock": ({"message": "#: extraneous key [cache_prompt] is not permitted"}, Complaint("cache_prompt")),
    "Groq": (error("property 'cache_prompt' is unsupported"), Complaint("cache_prompt")),
    "max_tokens beside it": (error("Request with max_tokens 8: unknown parameter 'cache_prompt'"), Complaint("cache_prompt")),
    "escaped quotes": ('{"error": "Unknown field \\u0027stream_options\\u0027"}', Complaint("stream_options")),
    "no words": ({}, Complaint()),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLAINTS)
def test_what_a_refusal_complains_of(name: str) -> None:
    said, complaint = COMPLAINTS[name]
    body = said if isinstance(said, str) else json.dumps(said)
    assert complaint_of(body.encode(), 8) == complaint


def test_a_minimum_that_was_kept_is_no_complaint() -> None:
    assert (
        complaint_of(json.dumps(error("max_tokens must be at least 1")).encode(), 8).minimum is None
    )
    limit = json.dumps(error("max_tokens or model output limit was reached")).encode()
    assert [complaint_of(limit, asked).minimum for asked in (8, 64, 1024)] == [64, 1024, None]


def test_a_dialect_keeps_the_minimum() -> None:
    dialect = Dialect(min_tokens=16, max_tokens_name="max_completion_tokens")
    assert dialect.body({"max_tokens": 1}) == {"max_completion_tokens": 16}
    assert dialect.body({"max_tokens": 256}) == {"max_completion_tokens": 256}


# --- the look ---

Refuse = Callable[[dict[str, Any]], Any]


class Strict(Engine):
    """Refuses what `refuse` gives words for."""

    refuse: Refuse = staticmethod(lambda body: None)
    status: str = "400 Bad Request"

    def _chat(self, connection: Connection, body: dict[str, Any]) -> None:
        words = self.refuse(body)
        if words is None:
            super()._chat(connection, body)
            return
        self.bodies.append(body)
        connection.reply(words if isinstance(words, dict) else error(words), self.status)


def looked(refuse: Refuse, status: str = "400 Bad Request") -> tuple[Capabilities, Strict]:
    engine = Strict()
    engine.refuse, engine.status = refuse, status
    with serving(engine.script) as server:
        return look(Client(server.base_url), lambda _: None), engine


def limit_of(body: dict[str, Any]) -> int:
    return int(body.get("max_tokens", body.get("max_completion_tokens", 0)))


def test_a_minimum_costs_no_field() -> None:
    """BerriAI/litellm#30808."""
    found, engine = looked(lambda body: GPT_5 if limit_of(body) < 16 else None)
    assert found.dialect == Dialect("small", min_tokens=16, api_path="/v1")
    assert (found.usage, found.stream_error, len(engine.bodies)) == (True, None, 2)
    assert found.facts()["min_tokens"] == 16
    assert "asked for 16 tokens or more" in found.words()


def test_a_minimum_behind_another_name() -> None:
    def refuse(body: dict[str, Any]) -> str | None:
        if "max_tokens" in body:
            return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        return GPT_5 if limit_of(body) < 16 else None

    found, _ = looked(refuse)
    assert (found.dialect.max_tokens_name, found.dialect.min_tokens) == (
        "max_completion_tokens",
        16,
    )
    assert found.dialect.refused == ()


def test_a_limit_that_was_reached() -> None:
    words = "Could not finish the message because max_tokens or model output limit was reached."
    found, _ = looked(lambda body: words if limit_of(body) < 64 else None)
    assert found.dialect == Dialect("small", min_tokens=64, api_path="/v1")


def test_a_refusal_that_lists_what_is_allowed() -> None:
    found, engine = looked(lambda body: SERDE if "cache_prompt" in body else None, "422 X")
    assert found.dialect == Dialect("small", refused=("cache_prompt",), api_path="/v1")
    assert len(engine.bodies) == 2


def test_a_rename_that_does_not_help_is_undone() -> None:
    """It blames a field that is not at fault, and does not know the other name."""

    def refuse(body: dict[str, Any]) -> str | None:
        if "max_completion_tokens" in body:
            return "unknown field `max_completion_tokens`"
        return "max_tokens, or something beside it" if "cache_prompt" in body else None

    found, _ = looked(refuse)
    assert found.dialect == Dialect("small", refused=("cache_prompt",), api_path="/v1")


def test_a_refused_field_that_was_not_at_fault_is_sent_again() -> None:
    words = "cache_prompt: bad request"
    found, _ = looked(lambda body: words if "stream_options" in body else None)
    assert found.dialect == Dialect("small", refused=("stream_options",), api_path="/v1")


def test_where_nothing_helps_nothing_is_left_out() -> None:
    found, engine = looked(lambda body: "no")
    assert found.dialect == Dialect("small", api_path="/v1")
    assert (found.stream_error, len(engine.bodies)) == ("HTTP 400: no", 4)
    for words in ("max_tokens is not supported", "cache_prompt is not supported"):
        found, engine = looked(lambda body, words=words: words)
        assert found.dialect == Dialect("small", api_path="/v1")
        assert len(engine.bodies) <= 12


def test_a_limit_is_no_refusal_of_a_field() -> None:
    words = {"error": {"message": "insufficient_quota: lower max_tokens or cache_prompt"}}
    found, engine = looked(lambda body: words, "429 X")
    assert found.dialect == Dialect("small", api_path="/v1")
    assert len(engine.bodies) == 1


# --- lists of models, and the path ---

LISTS: dict[str, Any] = {
    "OpenAI": {"object": "list", "data": [{"id": "a"}, {"id": "b"}]},
    "Together": [{"id": "a", "object": "model"}, {"id": "b"}],
    "Ollama": {"models": [{"name": "a", "model": "a"}, {"name": "b"}]},
    "llama.cpp": {"models": [{"name": "x"}], "data": [{"id": "a"}, {"id": "b"}]},
}
NO_LISTS: tuple[Any, ...] = ([], [1], {"models": []}, {"models": "a"}, ["a"], {"error": "a"}, None)


def models_of(answer: Any) -> tuple[str, ...]:
    engine = Engine({"/v1/models": (200, answer)}, models=())
    with serving(engine.script) as server:
        return look(Client(server.base_url), lambda _: None).models


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_models(name: str) -> None:
    assert models_of(LISTS[name]) == ("a", "b")


@pytest.mark.parametrize("answer", NO_LISTS)
def test_what_is_no_list_of_models(answer: Any) -> None:
    assert models_of(answer) == ()


WRONG: dict[str, tuple[str, Any]] = {
    "AWS": ("403 Forbidden", {"message": "Missing Authentication Token"}),
    "unauthorized": ("401 Unauthorized", {"message": "Unauthorized"}),
    "bad request": ("400 Bad Request", {"error": "unknown path"}),
    "not implemented": ("501 Not Implemented", {"error": "no"}),
    "200 and an error": ("200 OK", {"error": "Unexpected endpoint. (POST /v1/models)"}),
    "a page": ("404 Not Found", "the model of all pages"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_path_that_answers_as_it_likes(name: str) -> None:
    status, answer = WRONG[name]
    engine = Engine(models=())

    def script(connection: Connection, request: Request) -> None:
        if request.target == "/chat/completions":
            request.target = "/v1/chat/completions"
            engine.script(connection, request)
        elif name == "a page":
            connection.head(status=status, content_type="text/html")
            connection.send(f"<html>{answer}")
        else:
            connection.reply(answer, status)

    with serving(script) as server:
        found = look(Client(server.base_url), lambda _: None)
    assert (found.dialect.api_path, found.stream_error) == ("", None)


def test_a_model_that_is_not_found_is_no_path_that_is_not() -> None:
    engine = Engine(models=(), needs_model=True)
    with serving(engine.script) as server:
        found = look(Client(server.base_url, dialect=Dialect("large")), lambda _: None)
    assert found.dialect.api_path == "/v1"
    assert {body["model"] for body in engine.bodies} == {"large"}


def test_where_no_path_knows_the_chat_the_likeliest_is_named() -> None:
    with serving(lambda connection, _: connection.reply({}, "404 Not Found")) as server:
        found = look(Client(server.base_url), lambda _: None)
    assert found.dialect.api_path == "/v1"


@pytest.mark.parametrize(
    ("status", "body", "surely"),
    [
        (404, '{"detail": "Not Found"}', 0),
        (404, '{"error": "no such path: /v1/model/x"}', 0),
        (404, '{"error": {"message": "The model `x` does not exist"}}', 2),
        (422, "missing field `messages`", 2),
        (400, "{}", 1),
        (200, '{"choices": []}', 2),
        (200, "{}", 0),
        (200, 'data: {"choices": []}\n\n', 2),
    ],
)
def test_how_surely_an_answer_is_that_of_a_chat(status: int, body: str, surely: int) -> None:
    assert knows_the_chat(Reply(status, body.encode(), 1.0)) == surely
