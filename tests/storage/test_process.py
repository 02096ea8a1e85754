"""This process: threads that it starts, whatever comes in between."""

from __future__ import annotations

import threading

import pytest

from surehold.storage.process import start_thread


class _Interrupted(threading.Thread):
    """A thread in whose start a signal comes between two locks of Python's."""

    def __init__(self, meanwhile: BaseException) -> None:
        super().__init__(daemon=True)
        self._meanwhile = meanwhile

    def start(self) -> None:
        lock = threading.Lock()
        try:
            raise self._meanwhile
        finally:
            lock.release()  # RuntimeError: release unlocked lock


def test_ctrl_c_while_a_thread_starts_is_raised_as_itself() -> None:
    with pytest.raises(KeyboardInterrupt):
        start_thread(_Interrupted(KeyboardInterrupt()))


def test_a_thread_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="unlocked"):
        start_thread(_Interrupted(OSError()))
    done = threading.Thread(target=lambda: None)
    start_thread(done)
    done.join()
    with pytest.raises(RuntimeError, match="once"):
        start_thread(done)
