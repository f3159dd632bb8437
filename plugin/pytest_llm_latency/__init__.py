"""Latency of a streaming LLM server: read by hand, measured, judged by relations in one run."""

__version__ = "0.1.0"
