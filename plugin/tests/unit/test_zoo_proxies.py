"""What the zoo does about a proxy that is not installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import install_proxies
import pytest
from proxies import CADDY, NGINX, need

ABSENT = replace(NGINX, command="no-such-program -c $config")


def test_a_machine_without_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(
        pytest.skip.Exception, match=r"nginx is not installed \(apt-get install nginx\)"
    ):
        need(ABSENT)


def test_ci_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"make \.venv/nowhere\.installed"):
        need(replace(CADDY, venv="nowhere"))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_proxies.proxies, "NGINX", ABSENT)
    assert "nginx" in install_proxies.missing()


@pytest.mark.parametrize("words", [None, "#!/bin/sh\nexit 0\n"])
def test_nothing_starts_while_it_installs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str | None
) -> None:
    """A policy of the machine's own is left alone."""
    policy = tmp_path / "policy-rc.d"
    if words is not None:
        policy.write_text(words)
    monkeypatch.setattr(install_proxies, "POLICY", policy)
    with install_proxies.nothing_starts():
        assert policy.read_text() == (words or "#!/bin/sh\nexit 101\n")
        assert words or policy.stat().st_mode & 0o111
    assert policy.exists() == (words is not None)
