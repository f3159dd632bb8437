"""The code that the README shows, so that what a reader copies is what the tests run."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def readme_code(word: str) -> str:
    """The Python block that has `word`. Raises StopIteration where there is none."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if word in block)
