"""The exceptions of the package: one root, and the type says whose fault it was."""

from __future__ import annotations


class LatencyError(Exception):
    """Root of all errors of this package. The message is one line for a person."""


class ConfigError(LatencyError):
    """The user's input is wrong: an option, a file, a directory, a prompt too long."""


class ServerStartError(LatencyError):
    """A server of our own did not start; the message ends with the last lines of its log."""


class ServerError(LatencyError):
    """A server was reached and did not answer as an LLM server does."""


class OversizedAnswer(ServerError):
    """A server answered a plain question with more than is read."""


class StreamError(LatencyError):
    """An answer's stream cannot be used: error inside it, cut short, without text."""


class RateLimited(StreamError):
    """The server limits how often it is asked, which proves nothing about its streams."""


class ArtifactError(LatencyError):
    """An artifact could not be written, or does not hold what it must."""


class BudgetError(ConfigError):
    """What a run may ask for is spent, which is no fault of a server."""


class NotDoneYet(ArtifactError):
    """A step of a directory made by hand was not begun: none of its files is there."""
