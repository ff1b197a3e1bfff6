"""Progress of long work: one line on a terminal, drawn by tqdm, and nothing off it.

JAX reports the end of each stage of a compilation; so the line says "tracing" or "compiling" while
that goes on, and else how many steps were made, if the work consists of steps. With
TRUNCGAUSS_PROGRESS=0 in the environment nothing is said.
"""

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, ParamSpec, TypeVar

import jax

SETTING = "TRUNCGAUSS_PROGRESS"  # of the environment: 0 to say nothing
SECOND = 1.0  # before the line, which is renewed four times as often
COLUMNS, ROWS = 80, 24  # of a terminal that does not know its size
IDLE = 10.0  # seconds without work after which nobody waits to say something
STAGES = "/jax/core/compile/"  # what JAX's events of compilation begin with
TRACED, LOWERED, COMPILED = "jaxpr_trace", "jaxpr_to_mlir", "backend_compile"  # in this order
TRACING = 5.0  # seconds for which tracing is taken to go on after an event of it
NEEDS_NUMBERS = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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

    @property
    def stage(self) -> str:
        """The stage that goes on: tracing, which programs on disk need too, or compiling."""
        return "compiling" if self.until == float("inf") else "tracing"


@functools.cache
def compilations() -> Compilations:
    """The compilations of this process since the first call."""
    seen = Compilations()
    jax.monitoring.register_event_duration_secs_listener(seen)
    return seen


def line(text: str, heard: bool = True) -> Any:
    """A line on standard error, which only the first of several processes writes."""
    from tqdm import tqdm  # which quick work does not need

    first = not jax.distributed.is_initialized() or not jax.process_index()
    sized = False  # a terminal of 0 columns, as of some consoles, would be written nothing
    with contextlib.suppress(OSError, ValueError):
        sized = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    # The bar is blank; it fills the line up, or cuts its text off.
    return tqdm(
        desc=text, bar_format="{desc}{bar}", file=sys.stderr, leave=False, dynamic_ncols=sized,
        disable=not (first and heard), **({} if sized else {"ncols": COLUMNS, "nrows": ROWS}),
    )  # fmt: skip


class Line:
    """The line about the work of one thread: that of its bars, the outermost first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bars: list[bar] = []
        self.shown: Any = None  # tqdm's line, once the work takes long
        self.thread, self.ended, self.watched = 0, 0.0, False
        self.silent = threading.local()  # by thread, how many fits are to say nothing

    def open(self, opened: "bar") -> None:
        """Say what a bar says, from the innermost one on; other threads' bars are not shown."""
        with self.lock:
            if not self.bars:
                if not (sys.stderr and sys.stderr.isatty()):
                    return
                self.thread, self.began = threading.get_ident(), time.monotonic()
                self.compilations = compilations()
                self.programs = self.compilations.count
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
                    self.ended, shown, self.shown = time.monotonic(), self.shown, None
                    if shown is not None:
                        with contextlib.suppress(OSError, ValueError):
                            shown.close()

    def watch(self) -> None:
        """Draw the line a second after the work began, and renew it until there has been none for a
        while."""
        while True:
            time.sleep(SECOND / 4)
            with self.lock:
                now = time.monotonic()
                if not self.bars and now > self.ended + IDLE:
                    self.watched = False
                    return
                if not self.bars or now < self.began + SECOND:
                    continue
                text = f"{self.text()}, {now - self.began:.0f} s"
                try:
                    if self.shown is None:
                        self.shown = line(text)
                    self.shown.set_description_str(text)
                except (OSError, ValueError):  # nobody reads it, which is no reason to end the work
                    self.shown = line(text, heard=False)

    def text(self) -> str:
        bars = [*filter(None, map(str, self.bars))]
        if self.compilations.going_on:
            number = self.compilations.count - self.programs + 1
            bars.append(f"{self.compilations.stage} (program {number})")
        return f"truncgauss: {', '.join(bars) or 'computing'}"


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
        if type(progress).__name__ not in ("bool", "bool_", "int"):
            raise TypeError(f"{what}: progress must be True or False, got {progress!r}.")
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

    It is shown on a terminal if the loop takes more than a second, beside what compiles or computes
    within. TRUNCGAUSS_PROGRESS=0 in the environment turns off this line and all others.

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
    position = {"progress": 99, **dict(zip(signature.parameters, range(99)))}["progress"]

    @functools.wraps(function)
    def shown(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        said: Any = args[position] if position < len(args) else kwargs.get("progress", True)
        try:
            with bar(None, function.__name__, said):
                return function(*args, **kwargs)
        except Exception as error:
            from truncgauss.arrays.closures import explain_call  # of use to wrong calls

            explain_call(function.__name__, error, signature, args, kwargs)
            raise

    return shown
