"""Installs what is missing of the zoo's proxies that Debian has, if root runs it; none is started,
now or at the next boot. Ends with a failure where something is missing still."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import proxies

POLICY = Path("/usr/sbin/policy-rc.d")  # asked by Debian before it starts a service


def missing() -> list[str]:
    """The packages of programs that are not there."""
    programs = (value for value in vars(proxies).values() if isinstance(value, proxies.Program))
    return [one.package for one in programs if one.package and one.executable() is None]


@contextlib.contextmanager
def nothing_starts() -> Iterator[None]:
    """Where there is no policy yet: one that forbids every start."""
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink()


def main() -> int:
    """Install; 1 where something is missing still."""
    wanted = missing()
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted]
        with nothing_starts():
            subprocess.run(["apt-get", "update", "-q"], env=environment, check=True)
            subprocess.run(install, env=environment, check=True)
        if shutil.which("systemctl"):
            services = [
                name for name in wanted if Path(f"/lib/systemd/system/{name}.service").exists()
            ]
            subprocess.run(["systemctl", "disable", "--quiet", *services], check=bool(services))
    for package in missing():
        print(f"not installed: {package} (as root: apt-get install {package})", file=sys.stderr)
    return 1 if missing() else 0


if __name__ == "__main__":
    sys.exit(main())
