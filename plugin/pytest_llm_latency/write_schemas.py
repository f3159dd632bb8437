"""Writes the artifacts' JSON Schemas: `python -m pytest_llm_latency.write_schemas`."""

from __future__ import annotations

from pathlib import Path

from .evidence.artifacts import CHUNKS, FILES, schema
from .sse import json_text


def main() -> None:
    """Write schemas/NAME.schema.json beside this file."""
    directory = Path(__file__).with_name("schemas")
    directory.mkdir(exist_ok=True)
    for name in (*FILES, CHUNKS):
        text = json_text(schema(name), indent=2) + "\n"
        (directory / f"{name}.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
