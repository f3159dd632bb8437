"""Talking to one server: connections, stamps, exchanges, dialects and costs."""
