"""Ways of having a server: one context manager each, and the launcher `voice-llm`."""
