"""Progress of long work: a line that is renewed on a terminal, and a few lines off it.

JAX reports the end of each stage of a compilation; so the line says "compiling" while that goes
on, and else how many steps were made, if the work consists of steps.
"""

import functools
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import jax

from truncgauss.fitting.optimization.newton import Point

SECOND = 1.0  # between two renewals of the line on a terminal, and before the first
SELDOM = 10.0  # seconds before a line off a terminal, unless a stage begins; the next take twice
STAGES = "/jax/core/compile/"  # what JAX's events of compilation begin with
TRACED, LOWERED, COMPILED = "jaxpr_trace", "jaxpr_to_mlir", "backend_compile"  # in this order
TRACING = 5.0  # seconds for which tracing is taken to go on after an event of it

P = TypeVar("P", bound=Point)


class Compilations:
    """Whether JAX compiles at the moment, and how many programs it has compiled."""

    def __init__(self) -> None:
        self.count, self.until = 0, 0.0

    def __call__(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Take an event; each is sent at the end of a stage, of which the next follows at once."""
        stage = event.removeprefix(STAGES) if event.startswith(STAGES) else ""
        if stage.startswith(TRACED):
            self.until = max(self.until, time.monotonic() + TRACING)
        elif stage.startswith(LOWERED):
            self.until = float("inf")
        elif stage.startswith(COMPILED):
            self.count, self.until = self.count + 1, 0.0

    @property
    def going_on(self) -> bool:
        return time.monotonic() < self.until


@functools.cache
def compilations() -> Compilations:
    """The compilations of this process since the first call."""
    seen = Compilations()
    jax.monitoring.register_event_duration_secs_listener(seen)
    return seen


class Line:
    """The line about the work of one thread: that of its bars, the outermost first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bars: list[bar] = []
        self.thread = 0
        self.ended = threading.Event()

    def open(self, opened: "bar") -> None:
        """Say what a bar says, from the innermost one on; other threads' bars are not shown."""
        with self.lock:
            if not self.bars:
                self.begin()
            if self.thread == threading.get_ident() and opened not in self.bars:
                self.bars.append(opened)

    def begin(self) -> None:
        self.thread, self.stream, self.began = threading.get_ident(), sys.stderr, time.monotonic()
        self.compilations = compilations()
        self.programs, self.stages, self.due = self.compilations.count, list[str](), SELDOM
        self.terminal = bool(self.stream) and self.stream.isatty()
        self.width, self.ended = 0, threading.Event()
        if self.stream and not (jax.distributed.is_initialized() and jax.process_index()):
            threading.Thread(target=self.renewed, args=(self.ended,), daemon=True).start()

    def close(self, closed: "bar") -> None:
        """Leave out a bar, and those within it that did not come to their end."""
        with self.lock:
            if closed in self.bars:
                del self.bars[self.bars.index(closed) :]
                if not self.bars:
                    self.ended.set()
                    self.write("", "\r")

    def renewed(self, ended: threading.Event) -> None:
        """Renew the line every second until its end."""
        while not ended.wait(SECOND):
            with self.lock:
                if ended.is_set() or not self.say():
                    return

    def say(self) -> bool:
        """Write the line, if it is time; whether somebody may be reading it."""
        seconds = time.monotonic() - self.began
        stage, text = self.text()
        if self.terminal:
            # The cursor stays at the left, so that what others print replaces the line.
            return self.write(f"truncgauss: {text}, {seconds:.0f} s", "\r")
        first = stage != "computing" and stage not in self.stages
        if not first and seconds < self.due:
            return True
        self.stages.append(stage)
        self.due *= 1 if first else 2
        return self.write(f"truncgauss: {text}, {seconds:.0f} s", "\n")

    def text(self) -> tuple[str, str]:
        """The stage, and the text of the line."""
        bars = [*filter(None, map(str, self.bars))]
        counted = any(each.count for each in self.bars)
        if not self.compilations.going_on:
            return "steps" if counted else "computing", ", ".join(bars) or "computing"
        number = self.compilations.count - self.programs + 1
        return "compiling", ", ".join([*bars, f"compiling (program {number})"])

    def write(self, text: str, end: str) -> bool:
        """Write a line over the one before; whether that was possible."""
        if self.terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            self.width, blank = len(text), " " * (self.width - len(text))
            text = f"\r{text}{blank}" if text or blank else ""
        try:
            self.stream.write(f"{text}{end}" if text else "")
            self.stream.flush()
        except (OSError, ValueError):  # nobody reads it, which is no reason to end the work
            return False
        return True


LINE = Line()


class bar:
    """A count of items, or of work without items, in the line; to be iterated over or entered.

    Args:
        items: what is iterated over; None for a context alone.
        what: they are, or what the work is.
        progress: whether to show it.
        total: how many there are, if not what `items` says.
        count: how many are done at the start.
    """

    def __init__(
        self,
        items: Iterable[Any] | None,
        what: str,
        progress: bool,
        total: int | None = None,
        count: int = 0,
    ) -> None:
        self.items, self.what, self.progress = items, what, progress
        self.total = len(items) if total is None and isinstance(items, Sized) else total
        self.count, self.note = count, ""

    def __str__(self) -> str:
        of = f" of {self.total}" if self.total else ""
        counted = f"{self.what} {self.count}{of}" if self.count else self.what
        return f"{counted}, {self.note}" if self.note else counted

    def __enter__(self) -> "bar":
        if self.progress:
            LINE.open(self)
        return self

    def __exit__(self, *failure: object) -> None:
        LINE.close(self)

    def __iter__(self) -> Iterator[Any]:
        with self:
            for item in self.items or ():
                self.count += 1
                yield item


def watched(points: Iterable[P], size: float, progress: bool) -> Iterator[P]:
    """The points of Newton steps down a loss, with their log-likelihood in the line.

    Args:
        points: of the steps, one at a time.
        size: how many rows the loss is the mean of.
        progress: see `bar`.
    """
    shown = bar(points, "Newton steps", progress)
    for point in shown:
        value, away = -size * point.loss, point.decrement * size**0.5
        shown.note = f"log-likelihood {value:.8g}, about {away:.1e} standard errors to go"
        yield point
