"""Step 2: the event stream, read by hand."""
