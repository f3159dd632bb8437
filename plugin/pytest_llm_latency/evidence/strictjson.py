"""JSON in which no object has a key twice: readers differ in which of the two they believe."""

from __future__ import annotations

import json
from typing import Any

from ..errors import ArtifactError


def load_json(text: str, where: str) -> Any:
    """The value of a JSON text. Raises ArtifactError."""
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not JSON: {error}") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found
