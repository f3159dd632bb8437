"""Loads the plugin from this checkout; where it is installed, this names the same module."""

pytest_plugins = ["pytest_llm_latency.plugin"]
