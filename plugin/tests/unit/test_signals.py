"""A signal that ends the process ends a measurement as Ctrl-C does, and nothing else changes."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pytest_llm_latency.session.signals import ending_as_by_ctrl_c

BOTH = pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])


@BOTH
def test_it_ends_as_by_ctrl_c_once(signum: signal.Signals) -> None:
    inside: list[object] = []

    def ended() -> None:
        with ending_as_by_ctrl_c():
            try:
                os.kill(os.getpid(), signum)
            finally:
                inside.append(signal.getsignal(signum))

    with pytest.raises(KeyboardInterrupt, match=signum.name):
        ended()
    assert inside == [signal.SIG_DFL]  # a second one kills
    assert signal.getsignal(signum) is signal.SIG_DFL


@BOTH
def test_others_handlers_are_theirs(signum: signal.Signals) -> None:
    for theirs in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signum, theirs)
        try:
            with ending_as_by_ctrl_c():
                assert signal.getsignal(signum) is theirs
            assert signal.getsignal(signum) is theirs
        finally:
            signal.signal(signum, signal.SIG_DFL)


@BOTH
def test_one_that_a_test_installs_stays(signum: signal.Signals) -> None:
    try:
        with ending_as_by_ctrl_c():
            signal.signal(signum, signal.SIG_IGN)
        assert signal.getsignal(signum) is signal.SIG_IGN
    finally:
        signal.signal(signum, signal.SIG_DFL)


@BOTH
def test_a_forked_process_ends_as_it_would(signum: signal.Signals) -> None:
    with ending_as_by_ctrl_c():
        child = os.fork()
        if not child:
            try:
                os.kill(os.getpid(), signum)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signum


def test_another_thread_installs_nothing() -> None:
    found: list[object] = []

    def look() -> None:
        with ending_as_by_ctrl_c():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
