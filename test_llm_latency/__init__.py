"""The lab: eight steps on a streaming LLM server, in order, each runnable alone."""
