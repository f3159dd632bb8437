"""What a run keeps and what can be derived from it alone: recordings, timelines, files."""
