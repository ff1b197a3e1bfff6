"""What work says while it goes on: truly, on a terminal in one line, and nothing off it."""

import functools
import io
import re
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.arrays import importing, progress
from truncgauss.fits.clusters.cluster_fit import ClusterFit
from truncgauss.fits.gaussian.ordinal_fit import OrdinalFit
from truncgauss.fitting import descent

MINIMIZE = tg.minimize  # so that its import is no part of what is heard
ROWS = tg.Observations.exact(np.linspace(0.1, 0.9, 30) ** 2, region=tg.Box([0.0], [jnp.inf]))


class Stream(io.StringIO):
    """Standard error, on a terminal or off it."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def said(monkeypatch):
    """(work, terminal) -> what work says, if a second is a hundredth of one."""

    def listen(work, terminal):
        monkeypatch.setattr(progress, "SECOND", 0.01)
        monkeypatch.setattr(progress, "LINE", progress.Line())
        monkeypatch.setattr(sys, "stderr", stream := Stream(terminal))
        try:
            work()
        finally:
            monkeypatch.undo()
        before = stream.getvalue()
        time.sleep(0.05)
        assert stream.getvalue() == before, "it goes on after the end of the work"
        return before

    return listen


def slow_fit(size, num_steps=200):
    """A fit of a new shape, which is compiled, whose steps are waited for."""

    def wait(x):
        time.sleep(0.01)
        return np.zeros((), x.dtype)

    def loss(x):
        zero = jax.pure_callback(wait, jax.ShapeDtypeStruct((), x.dtype), jax.lax.stop_gradient(x))
        return jnp.sum(jnp.cosh(x - jnp.arange(size)) ** 2) + zero

    return MINIMIZE(jax.tree_util.Partial(loss), jnp.full(size, 0.5), num_steps=num_steps)


TRACED = r"(tracing|compiling) \(program \d"


def test_a_terminal_hears_of_compiling_and_then_of_steps_and_a_file_of_nothing(said):
    text = said(lambda: slow_fit(7), terminal=True)
    assert "\n" not in text and text.endswith("\r")
    lines = [line.strip() for line in text.split("\r") if line.strip()]
    assert all(line.startswith("truncgauss: minimize") for line in lines)
    first = next(i for i, line in enumerate(lines) if re.search(TRACED, line))
    steps = [i for i, line in enumerate(lines) if "of 200, loss" in line]
    assert steps and first < steps[-1]
    assert not said(lambda: slow_fit(8), terminal=False)


def test_quick_work_and_work_without_progress_say_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Stream(True))
    for second, shown in ((1.0, False), (0.01, False), (60.0, True)):
        monkeypatch.setattr(progress, "SECOND", second)
        tg.fit_observations(ROWS, progress=shown)
    assert not stream.getvalue().strip()


def test_calls_and_loops_of_ones_own_say_what_they_do_unless_told_to_be_silent(said, monkeypatch):
    def call():
        time.sleep(0.1)
        return tg.log_probability(np.zeros(2), np.eye(2), tg.Box([0.0, 0.0], [1.0, 1.0]))

    def silent():
        with progress.bar(None, "fit", False):
            slow()

    def loop():
        for _ in tg.progress(np.arange(4), "rows"):
            time.sleep(0.03)

    slow = progress.reported(call)
    assert "truncgauss: call, " in said(slow, terminal=True)
    assert not said(silent, terminal=True)
    lines = [line.strip() for line in said(loop, terminal=True).split("\r") if line.strip()]
    assert lines[0].startswith("truncgauss: rows 1 of 4, ") and "rows 4 of 4" in lines[-1]
    monkeypatch.setenv("TRUNCGAUSS_PROGRESS", "0")
    assert not said(slow, terminal=True)


def test_a_slow_import_and_the_reading_of_a_formula_are_said_unless_the_call_is_silent(
    said, monkeypatch, tmp_path
):
    (tmp_path / "takes_long.py").write_text("import time\ntime.sleep(0.1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = said(lambda: importing.imported("takes_long"), terminal=True)
    assert "truncgauss: importing takes_long, " in line

    def slow_formula(*args):
        time.sleep(0.1)
        return np.arange(9.0) % 4, {"x": np.arange(9.0)}

    def fit(**more):
        monkeypatch.setattr(tg.tables, "by_formula", slow_formula)
        tg.fit_regression("y ~ x", data={"y": [1.0]}, num_steps=0, **more)

    assert "truncgauss: fit_regression, " in said(fit, terminal=True)
    assert not said(functools.partial(fit, progress=False), terminal=True)


def test_newton_steps_tell_the_log_likelihood(said, monkeypatch):
    fit = tg.fit_observations(ROWS, progress=False)
    slowly = lambda points, *more: (time.sleep(0.05) or point for point in points)
    watched = descent.watched
    monkeypatch.setattr(descent, "watched", lambda points, *more: slowly(watched(points, *more)))
    text = said(lambda: tg.fit_observations(ROWS), terminal=True)
    assert "truncgauss: fit_observations, Newton steps 1, log-likelihood" in text
    assert f"log-likelihood {fit.log_likelihood:.8g}, about" in text


def test_compiling_is_what_lies_between_the_events_of_its_stages(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    seen = progress.Compilations()

    def after(event, seconds=0.0):
        if event:
            seen(f"/jax/core/compile/{event}_duration", 0.1, fun_name="f")
        now[0] += seconds
        return seen.going_on and seen.stage, seen.count

    assert [after("", 0.0), after("jaxpr_trace", 1.0), after("", 1e3)] == [
        (False, 0), ("tracing", 0), (False, 0),  # traced, and not compiled
    ]  # fmt: skip
    assert after("jaxpr_trace") == ("tracing", 0)
    assert after("jaxpr_to_mlir_module") == after("", 1e4) == ("compiling", 0)  # however long
    assert after("backend_compile") == (False, 1)
    seen("/jax/other", 1.0)
    assert not seen.going_on


def test_failures_other_threads_and_a_reader_that_has_gone_leave_no_trace(said):
    def failing():
        for _ in progress.bar(range(3), "starts", True):
            with progress.bar(None, "inside", True):
                time.sleep(0.05)
                next(iter(progress.bar([1], "left behind", True)))
                raise RuntimeError("a failure")

    def work(name):
        with progress.bar(None, name, True):
            time.sleep(0.05)
            if name == "first":
                thread = threading.Thread(target=work, args=("other",))
                thread.start()
                thread.join()

    class Closed(Stream):
        def write(self, text):
            raise BrokenPipeError

    def unheard():
        sys.stderr = Closed(True)
        work("unheard")

    with pytest.raises(RuntimeError, match="a failure"):
        said(failing, terminal=True)
    assert not progress.LINE.bars
    text = said(lambda: work("first"), terminal=True)
    assert "first" in text and "other" not in text
    said(unheard, terminal=True)


def test_what_follows_from_a_fit_opens_the_line_too(monkeypatch):
    opened = []
    monkeypatch.setattr(progress.Line, "open", lambda self, bar: opened.append(bar.what))
    rows = tg.Observations.exact([[0.1], [0.9], [0.4], [0.2]])
    design = {"constant": np.ones(4), "x": [0.0, 3.0, 1.0, 2.0]}
    fit = tg.fit_regression([0.1, 0.9, 0.4, 0.2], design, num_profiles=0)
    smaller = tg.fit_observations(rows, num_profiles=0)
    opened.clear()
    derived = fit.derived("x")
    for call in (fit.predict, fit.margins, derived.profile, lambda: fit.profile("x")):
        call()
    tg.likelihood_ratio(smaller, fit)
    assert set("derived predict margins profile likelihood_ratio".split()) <= {*opened}
    for kind in (ClusterFit, tg.mixtures.MixtureFit, OrdinalFit):
        for name in {"predict", "effects", "sample", "completed"} & {*vars(kind)}:
            assert hasattr(getattr(kind, name), "__wrapped__"), f"{kind.__name__}.{name}"
    for call in (tg.likelihood.hold, tg.first_nonfinite, tg.polychoric_matrix):
        assert hasattr(call, "__wrapped__"), call.__name__
