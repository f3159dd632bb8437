"""Step 6: when the first sentence is complete."""
