"""Step 8: the numbers side by side."""
