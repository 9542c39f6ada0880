"""A signal has another handler for a while, and then the one that it had before."""

import signal
from threading import Thread

import pytest

from allranks.base.signals import handling


@pytest.fixture
def usual():
    """Handle SIGUSR1 by a function that takes note, as a program of its own does."""
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append("as usual"))
    yield heard
    signal.signal(signal.SIGUSR1, before)


def test_the_handler_holds_within_the_block(usual):
    """It hears the signal in it, and the usual one hears it after."""
    with handling(signal.SIGUSR1, lambda number, _: usual.append(number)):
        signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    assert usual == [signal.SIGUSR1, "as usual"]


def test_an_error_in_the_block_restores_the_usual_handler(usual):
    """The handler itself may raise it."""

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), handling(signal.SIGUSR1, stop):
        signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    assert usual == ["as usual"]


def test_a_thread_changes_nothing(usual):
    """Only the main thread may set a handler; elsewhere the block simply runs."""
    ran = []

    def block():
        with handling(signal.SIGUSR1, lambda *_: usual.append("other")):
            signal.raise_signal(signal.SIGUSR1)
            ran.append(True)

    thread = Thread(target=block)
    thread.start()
    thread.join()
    assert (ran, usual) == ([True], ["as usual"])
