"""Signals that end a process, as exceptions that let it save its state first."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

# Loggers of JAX that report what a callback raised, before JAX makes it an error of its own.
REPORTERS = ("jax._src.debugging", "jax._src.callback")
SOON = 0.02  # seconds after which a signal is sent again that came at a bad moment


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a report of an error is of anything but an interruption."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Within this context SIGTERM and SIGINT raise a KeyboardInterrupt that names the signal.

    A fit with a checkpoint then saves its state before it ends. Only the main thread may set signal
    handlers; in any other this changes nothing.

    Example:
        >>> from truncgauss import fitting
        >>> with fitting.interrupts():
        ...     result = tg.minimize(lambda x: (x - 1.0) ** 2, jnp.array(0.0), progress=False)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    arrived: list[str] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        arrived.append(signal.Signals(number).name)
        raise KeyboardInterrupt(signal.Signals(number).name)

    def raise_again(failure: "sys.UnraisableHookArgs") -> None:
        # Python drops what is raised while it collects garbage, where JAX has callbacks.
        if not isinstance(failure.exc_value, KeyboardInterrupt):
            return hook(failure)
        number = signal.Signals.__members__.get(str(failure.exc_value), signal.SIGINT)
        again = threading.Timer(SOON, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    hook = sys.unraisablehook
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, interrupt)
        sys.unraisablehook = raise_again
        for name in REPORTERS:
            logging.getLogger(name).addFilter(_is_news)
        yield
    except Exception as error:
        # What is raised in a callback of JAX comes back as an error of the computation.
        if arrived and "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt(arrived[-1]) from error
        raise
    finally:
        sys.unraisablehook = hook
        for name in REPORTERS:
            logging.getLogger(name).removeFilter(_is_news)
        for number, handler in before.items():
            signal.signal(number, handler)
