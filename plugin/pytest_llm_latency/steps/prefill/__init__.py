"""Step 4: the longer the prompt, the later the first text."""
