"""Progress of long work: a line that is renewed on a terminal, and a few lines off it.

JAX reports the end of each stage of a compilation; so the line says "compiling" while that goes
on, and else how many steps were made, if the work consists of steps. With TRUNCGAUSS_PROGRESS=0 in
the environment nothing is said.
"""

import functools
import inspect
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, ParamSpec, Protocol, TypeVar

import jax

SETTING = "TRUNCGAUSS_PROGRESS"  # of the environment: 0 to say nothing
SECOND = 1.0  # between two renewals of the line on a terminal, and before the first
SELDOM = 10.0  # seconds before a line off a terminal, unless a stage begins; the next take twice
LONGEST = 80.0  # seconds between two lines off a terminal
IDLE = 10.0  # seconds without work after which nobody waits to say something
STAGES = "/jax/core/compile/"  # what JAX's events of compilation begin with
TRACED, LOWERED, COMPILED = "jaxpr_trace", "jaxpr_to_mlir", "backend_compile"  # in this order
TRACING = 5.0  # seconds for which tracing is taken to go on after an event of it
NEEDS_NUMBERS = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Step(Protocol):
    """A point that Newton steps reach: its loss, and how far it is from the optimum."""

    @property
    def loss(self) -> float: ...
    @property
    def decrement(self) -> float: ...


P = TypeVar("P", bound=Step)


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
        self.thread, self.ended, self.watched = 0, 0.0, False
        self.silent = threading.local()  # by thread, how many fits are to say nothing

    def open(self, opened: "bar") -> None:
        """Say what a bar says, from the innermost one on; other threads' bars are not shown."""
        with self.lock:
            if not self.bars:
                self.thread, self.stream = threading.get_ident(), sys.stderr
                self.began = self.spoke = time.monotonic()
                self.compilations = compilations()
                self.programs, self.stages = self.compilations.count, list[str]()
                self.terminal = bool(self.stream) and self.stream.isatty()
                self.due, self.width, self.heard = SELDOM, 0, bool(self.stream)
                if not self.watched:  # one thread for many calls, most of which take milliseconds
                    self.watched = True
                    threading.Thread(target=self.watch, daemon=True).start()
            if self.thread == threading.get_ident() and opened not in self.bars:
                self.bars.append(opened)

    def close(self, closed: "bar") -> None:
        """Leave out a bar, and those within it that did not come to their end."""
        with self.lock:
            if closed in self.bars:
                del self.bars[self.bars.index(closed) :]
                if not self.bars:
                    self.ended = time.monotonic()
                    if self.heard and self.width:
                        self.write("", "\r")

    def watch(self) -> None:
        """Renew the line a second after the work began and every second from there on, until there
        has been none for a while."""
        while True:
            time.sleep(SECOND / 4)
            with self.lock:
                now = time.monotonic()
                if not self.bars and now > self.ended + IDLE:
                    self.watched = False
                    return
                if self.bars and self.heard and now >= self.spoke + SECOND:
                    self.spoke = now
                    first = not jax.distributed.is_initialized() or not jax.process_index()
                    self.heard = first and self.say()

    def say(self) -> bool:
        """Write the line, if it is time; whether somebody may be reading it."""
        seconds = time.monotonic() - self.began
        stage, text = self.text()
        if self.terminal:
            # The cursor stays at the left, so that what others print replaces the line.
            return self.write(f"truncgauss: {text}, {seconds:.0f} s", "\r")
        # After another stage, that it computes is no news; before, silence would be.
        first = stage not in self.stages and not (stage == "computing" and self.stages)
        if not first and seconds < self.due:
            return True
        self.stages.append(stage)
        self.due += 0.0 if first else min(self.due, LONGEST)
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
        silent = getattr(LINE.silent, "count", 0)
        if self.progress and not silent and os.environ.get(SETTING) != "0":
            LINE.open(self)
        elif self.items is None and not self.progress:  # what it calls is silent too
            LINE.silent.count = silent + 1
        return self

    def __exit__(self, *failure: object) -> None:
        if self.items is None and not self.progress:
            LINE.silent.count -= 1
        LINE.close(self)

    def __iter__(self) -> Iterator[Any]:
        with self:
            for item in () if self.items is None else self.items:
                self.count += 1
                yield item


def progress(
    items: Iterable[Item], what: str = "items", total: int | None = None
) -> Iterator[Item]:
    """The items of a loop of one's own, counted in the line on standard error that fits write.

    It is shown if the loop takes more than a second: renewed on a terminal, in a few lines off it,
    beside what compiles or computes within. TRUNCGAUSS_PROGRESS=0 in the environment turns off this
    line and all others.

    Args:
        items: what is iterated over.
        what: they are, in the plural.
        total: how many there are, if `len(items)` does not say.

    Example:
        >>> [round(float(tg.special.log_ndtr(x)), 3) for x in tg.progress([0.0, 1.0], "limits")]
        [-0.693, -0.173]
    """
    if not isinstance(items, Iterable):
        raise TypeError(f"progress: needs items, such as range({items!r}), got {items!r}.")
    return iter(bar(items, what, True, total))


def reported(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` with the line on standard error, should a call take more than a second, unless it
    has progress=False."""

    signature = inspect.signature(function)
    position = [*signature.parameters, "progress"].index("progress")

    @functools.wraps(function)
    def shown(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        said = args[position] if position < len(args) else kwargs.get("progress", True)
        try:
            with bar(None, function.__name__, bool(said)):
                return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            from truncgauss.arrays.closures import closes_over_traced
            from truncgauss.words.arguments import explain

            name, traced = function.__name__, jax.core.Tracer
            given = any(isinstance(leaf, traced) for leaf in jax.tree.leaves((args, kwargs)))
            if given and isinstance(error, NEEDS_NUMBERS):
                raise TypeError(
                    f"{name}: an argument is traced by JAX (jit, vmap or grad), but {name} needs "
                    "numbers: call it outside of these; it compiles by itself what it needs."
                ) from error
            hidden = isinstance(error, NEEDS_NUMBERS) or "compiler_options" in str(error)
            closing = [x for x in (*args, *kwargs.values()) if hidden and closes_over_traced(x)]
            if closing:
                what = getattr(closing[0], "__name__", type(closing[0]).__name__)
                raise TypeError(
                    f"{name}: {what} closes over a value that JAX traces (grad, jit or vmap). Make "
                    "it a field of the method or edge; a fit needs numbers, outside of these."
                ) from error
            if isinstance(error, TypeError):
                explain(error, signature, args, kwargs)
            raise

    return shown


def warn(message: str) -> None:
    """Give a UserWarning at the line outside of the package that called it."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and frame.f_globals["__name__"].partition(".")[0] == "truncgauss":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


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
