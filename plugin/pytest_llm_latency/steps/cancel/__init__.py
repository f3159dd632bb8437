"""Step 7: a close stops the generation."""
