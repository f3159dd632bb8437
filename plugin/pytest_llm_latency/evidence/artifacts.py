"""The artifacts of the lab's contract: one frozen dataclass each, checked when parsed.

The dataclasses are the only description of the files: parsing, writing and the JSON Schemas
come from them. They hold numbers and judge nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ..errors import ArtifactError
from ..sse import json_text
from .strictjson import load_json
from .timeline import LARGEST


@dataclass(frozen=True)
class AtLeast:
    """A lower bound of a number, or of the length of an array or a string."""

    minimum: int


Ms = Annotated[float, AtLeast(0)]
Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True)
class Health:
    """health.json."""

    status: str


@dataclass(frozen=True)
class GenerationSettings:
    """What props.json says of a slot."""

    n_ctx: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class Props:
    """props.json."""

    model_path: Annotated[str, AtLeast(1)]
    total_slots: Annotated[int, AtLeast(1)]
    default_generation_settings: GenerationSettings


@dataclass(frozen=True)
class Chunk:
    """A line of chunks.jsonl: a piece of text and when it came."""

    t_ms: Ms
    text: str


@dataclass(frozen=True)
class TtftRun:
    """One of the five runs; `tokens` is the server's count, null where it gives none."""

    ttft_ms: Ms
    total_ms: Ms
    tokens: Count | None


@dataclass(frozen=True)
class Ttft:
    """ttft.json. The p50 are medians of the runs."""

    runs: Annotated[tuple[TtftRun, ...], AtLeast(1)]
    ttft_p50: Ms
    total_p50: Ms
    salt: str | None = None


@dataclass(frozen=True)
class PrefillRow:
    """An entry of prefill.json; the counts are null where the server gives none."""

    docs: Count
    prompt_n: Count | None
    prompt_ms: Ms | None
    ttft_ms: Ms
    salt: str | None = None


Prefill = Annotated[tuple[PrefillRow, ...], AtLeast(2)]


@dataclass(frozen=True)
class CacheLeg:
    """Tokens that were processed, and the time to the first text."""

    prompt_n: Count | None
    ttft_ms: Ms


@dataclass(frozen=True)
class Cache:
    """cache.json. `changed_suffix` answers the lab's question about the end of the prompt."""

    first: CacheLeg
    second: CacheLeg
    changed_prefix: CacheLeg
    changed_suffix: CacheLeg | None = None
    salt: str | None = None


@dataclass(frozen=True)
class Sentence:
    """sentence.json."""

    ttft_ms: Ms
    first_sentence_ms: Ms
    total_ms: Ms
    first_sentence: str
    text: str


@dataclass(frozen=True)
class Cancel:
    """cancel.json. `slot_idle_after_ms` counts from the close; null: not measurable."""

    max_tokens: Count
    received_tokens: Count
    closed_at_ms: Ms
    slot_idle_after_ms: Ms | None


@dataclass(frozen=True)
class Report:
    """report.json: copies, each from the file of its step."""

    ttft_p50_ms: Ms
    total_p50_ms: Ms
    ttft_12docs_ms: Ms
    prompt_n_12docs: Count | None
    cache_ttft_ms: Ms
    first_sentence_ms: Ms
    cancel_idle_ms: Ms | None


def report_of(
    ttft: Ttft, prefill: tuple[PrefillRow, ...], cache: Cache, sentence: Sentence, cancel: Cancel
) -> Report:
    """The report that these artifacts make."""
    return Report(
        ttft_p50_ms=ttft.ttft_p50,
        total_p50_ms=ttft.total_p50,
        ttft_12docs_ms=prefill[-1].ttft_ms,
        prompt_n_12docs=prefill[-1].prompt_n,
        cache_ttft_ms=cache.second.ttft_ms,
        first_sentence_ms=sentence.first_sentence_ms,
        cancel_idle_ms=cancel.slot_idle_after_ms,
    )


CHUNKS = "chunks.jsonl"
FILES: Mapping[str, Any] = {
    "health.json": Health,
    "props.json": Props,
    "ttft.json": Ttft,
    "prefill.json": Prefill,
    "cache.json": Cache,
    "sentence.json": Sentence,
    "cancel.json": Cancel,
    "report.json": Report,
}


def dump(artifact: Any) -> str:
    """The artifact as indented JSON. A key that may be left out is, where it is None."""
    return json_text(_plain(artifact), indent=2) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not (_may_be_left_out(field) and getattr(value, field.name) is None)
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _may_be_left_out(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING


def parse(kind: Any, text: str, where: str) -> Any:
    """Parse JSON text as `kind`, a dataclass or a tuple of one.

    Raises ArtifactError that names `where`, the path inside it and what was expected.
    """
    return check(kind, load_json(text, where), where)


def check(kind: Any, value: Any, where: str) -> Any:
    """Turn plain JSON data into `kind`; unknown keys are allowed. Raises ArtifactError."""
    bound = None
    if typing.get_origin(kind) is Annotated:
        kind, bound = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in typing.get_args(kind) if arg is not types.NoneType)
        return None if value is None else check(inner, value, where)
    if dataclasses.is_dataclass(kind):
        return _check_object(kind, value, where)
    if typing.get_origin(kind) is tuple:
        _expect(isinstance(value, list), where, "an array", value)
        if bound is not None:
            _expect(len(value) >= bound.minimum, where, f"at least {bound.minimum} items", value)
        inner = typing.get_args(kind)[0]
        return tuple(check(inner, item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind is str:
        _expect(isinstance(value, str), where, "a string", value)
        if bound is not None:
            _expect(len(value) >= bound.minimum, where, "a string that is not empty", value)
        return value
    name = "an integer" if kind is int else "a number"
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A number beyond is no count and no time, and no float holds it exactly. NaN is not below.
    _expect(ok and abs(value) < LARGEST, where, name, value)
    # JSON knows one kind of number: 142.0 is a whole one.
    _expect(kind is float or float(value).is_integer(), where, name, value)
    if bound is not None:
        _expect(value >= bound.minimum, where, f"{name} of at least {bound.minimum}", value)
    return kind(value)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _check_object(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = _hints(kind)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            found[field.name] = check(hints[field.name], value[field.name], f"{where}.{field.name}")
        else:
            _expect(_may_be_left_out(field), where, f"the key {field.name!r}", value)
    return kind(**found)


def _expect(ok: bool, where: str, what: str, value: Any) -> None:
    if not ok:
        shown = json.dumps(value) if not isinstance(value, (dict, list)) else type(value).__name__
        if isinstance(value, dict):
            shown = "keys " + ", ".join(map(repr, value))
        raise ArtifactError(f"{where}: expected {what}, found {shown[:120]}")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of an artifact of FILES, or of a line of chunks.jsonl."""
    kind = Chunk if name == CHUNKS else FILES[name]
    description = kind.__doc__ if dataclasses.is_dataclass(kind) else PrefillRow.__doc__
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": " ".join((description or "").split()),
        **_schema(kind),
    }


def _schema(kind: Any) -> dict[str, Any]:
    bound = None
    if typing.get_origin(kind) is Annotated:
        kind, bound = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in typing.get_args(kind) if arg is not types.NoneType)
        return {"anyOf": [_schema(inner), {"type": "null"}]}
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(Any, kind))
        fields = dataclasses.fields(kind)
        return {
            "type": "object",
            "properties": {field.name: _schema(hints[field.name]) for field in fields},
            "required": [field.name for field in fields if not _may_be_left_out(field)],
        }
    if typing.get_origin(kind) is tuple:
        found: dict[str, Any] = {"type": "array", "items": _schema(typing.get_args(kind)[0])}
        return found if bound is None else {**found, "minItems": bound.minimum}
    if kind is str:
        return {"type": "string"} if bound is None else {"type": "string", "minLength": 1}
    found = {"type": "integer" if kind is int else "number"}
    return found if bound is None else {**found, "minimum": bound.minimum}
