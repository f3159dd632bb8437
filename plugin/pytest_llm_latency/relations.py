"""The relations for a user's own tests: each takes what was measured and gives a `Verdict`.

Only numbers of one run are compared with each other; no absolute time is judged. A facade: the
rules are in `verdicts/`.
"""

from .verdicts.pairs import cached_below_uncached, long_above_short
from .verdicts.stream import comes_as_made, ttft_below_total

__all__ = ["cached_below_uncached", "comes_as_made", "long_above_short", "ttft_below_total"]
