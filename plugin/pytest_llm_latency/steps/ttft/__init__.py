"""Step 3: the time to the first text, without the cache."""
