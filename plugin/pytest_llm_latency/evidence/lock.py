"""The lock of a run's directory, and the id of a run."""

from __future__ import annotations

import secrets
import time

from ..errors import ArtifactError, ConfigError
from .files import Directory


def new_run_id() -> str:
    """Unique, and sorted by time of start (UTC)."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(4)


def lock(files: Directory, source: str) -> int:
    """Create and lock the directory: the descriptor that holds the lock. Raises ConfigError, which
    names `source`."""
    path = files.path
    try:
        path.mkdir(parents=True, exist_ok=True)
        return files.lock(".lock")
    except FileExistsError:
        raise ConfigError(f"{source}: {path} is not a directory") from None
    except NotADirectoryError as error:
        raise ConfigError(f"{source}: {error.filename} lies below a file") from None
    except BlockingIOError:
        raise ConfigError(
            f"{source}: another run is using {path}; wait for it, or name another directory"
        ) from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot write into {path}: {error.strerror}") from None
    except ArtifactError as error:
        raise ConfigError(f"{source}: {path}: {error}") from None
