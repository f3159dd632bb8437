"""The published JSON Schemas and the parser accept and refuse the same."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llm_latency.errors import ArtifactError
from pytest_llm_latency.evidence.artifacts import CHUNKS, FILES, Chunk, check, schema

NAMES = [*FILES, CHUNKS]
LEG = {"prompt_n": 5, "ttft_ms": 1.5}
GOOD: dict[str, Any] = {
    "health.json": {"status": "ok"},
    "props.json": {"model_path": "m", "total_slots": 1, "default_generation_settings": {"n_ctx": 1}},
    "chunks.jsonl": {"t_ms": 1.5, "text": "a"},
    "ttft.json": {"runs": [{"ttft_ms": 1.5, "total_ms": 2, "tokens": 3}], "ttft_p50": 1.5, "total_p50": 2},
    "prefill.json": [{"docs": n, "prompt_n": n, "prompt_ms": None, "ttft_ms": 1.0} for n in (0, 4)],
    "cache.json": {"first": LEG, "second": LEG, "changed_prefix": LEG, "salt": "ab"},
    "sentence.json": {"ttft_ms": 1, "first_sentence_ms": 2, "total_ms": 3, "first_sentence": "A", "text": "A"},
    "cancel.json": {"max_tokens": 256, "received_tokens": 3, "closed_at_ms": 500.0, "slot_idle_after_ms": None},
    "report.json": {
        "ttft_p50_ms": 1.0, "total_p50_ms": 1.0, "ttft_12docs_ms": 1.0, "prompt_n_12docs": 1,
        "cache_ttft_ms": 1.0, "first_sentence_ms": 1.0, "cancel_idle_ms": None,
    },
}  # fmt: skip


def published(name: str) -> Any:
    return json.loads(
        files("pytest_llm_latency").joinpath("schemas", f"{name}.schema.json").read_text()
    )


def parses(name: str, value: Any) -> bool:
    try:
        check(Chunk if name == CHUNKS else FILES[name], value, name)
    except ArtifactError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_what_is_published_is_what_the_dataclasses_say(name: str) -> None:
    """Written anew by: python -m pytest_llm_latency.write_schemas"""
    assert published(name) == schema(name)
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_every_artifact_has_an_example_here() -> None:
    assert set(GOOD) == set(NAMES)


def changed(value: Any, choice: st.DataObject) -> Any:
    """The value with one leaf, key or type changed."""
    if isinstance(value, dict) and value and choice.draw(st.booleans()):
        key = choice.draw(st.sampled_from(sorted(value)))
        if choice.draw(st.booleans()):
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], choice)}
    if isinstance(value, list) and value and choice.draw(st.booleans()):
        at = choice.draw(st.integers(0, len(value) - 1))
        return [*value[:at], changed(value[at], choice), *value[at + 1 :]]
    junk = [None, True, -1, 0, 1, 1.5, -0.5, "", "x", [], {}]
    return choice.draw(st.sampled_from(junk))


@given(name=st.sampled_from(NAMES), choice=st.data())
def test_schema_and_parser_agree(name: str, choice: st.DataObject) -> None:
    validator = jsonschema.Draft202012Validator(schema(name))
    assert parses(name, GOOD[name])
    assert validator.is_valid(GOOD[name])
    value = changed(GOOD[name], choice)
    # JSON Schema calls 1.0 an integer; we want the whole number that the contract shows.
    assert parses(name, value) == validator.is_valid(value), value
