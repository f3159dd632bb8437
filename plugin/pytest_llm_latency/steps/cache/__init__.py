"""Step 5: what is the same from the front is not processed again."""
