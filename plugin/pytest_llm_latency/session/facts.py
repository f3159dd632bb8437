"""What run.json keeps of a run: versions, options, machine, server."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from typing import Any

from .settings import Settings


def load_average() -> float | None:
    """Of the last minute; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def session_facts(settings: Settings) -> dict[str, Any]:
    """What a reader of run.json needs to know of this run, secrets excluded."""
    packages = ("pytest-llm-latency", "pytest", "requests", "urllib3", "xllamacpp")
    versions = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "versions": versions,
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "options": settings.shown(),
    }
