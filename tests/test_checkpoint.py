"""Checkpoints: an interrupted fit goes on to the bit, and a file of another fit is refused."""

import gc
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import truncgauss as tg
from tests.test_fitting import rosenbrock as valley
from truncgauss import fitting
from truncgauss.execution import checkpoint
from truncgauss.optimize import loop


def kept(path, *args, **settings):
    """A fit whose state is kept in a file."""
    with fitting.resumable(path):
        return tg.minimize(*args, progress=False, **settings)


def noisy(x, key):
    return jnp.sum((x - jax.random.normal(key, x.shape)) ** 2)


ADAM = optax.adam(0.01)  # one object, so that its fits share a compilation


def settings(kind):
    key = jax.random.key(5) if kind == "random" else None
    return {
        "objective": noisy if kind == "random" else valley,
        "start": jnp.array([-1.0, 2.0, 0.5]),
        "optimizer": ADAM if kind == "random" else None,
        "key": key,
    }


@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_a_fit_in_two_parts_equals_one_fit_to_the_bit(kind, tmp_path):
    whole = tg.minimize(num_steps=60, progress=False, **settings(kind))
    path = tmp_path / "folder" / "fit.npz"
    part = kept(path, num_steps=17, **settings(kind))
    assert part.num_steps == 17 and path.exists()
    resumed = kept(path, num_steps=60, **settings(kind))
    np.testing.assert_array_equal(resumed.params, whole.params)
    np.testing.assert_array_equal(resumed.loss_trace[18:], whole.loss_trace[18:])
    assert resumed.num_steps == whole.num_steps and resumed.reason == whole.reason
    # A finished fit is read, not run again.
    again = kept(path, num_steps=60, **settings(kind))
    np.testing.assert_array_equal(again.loss_trace, resumed.loss_trace)
    # Nothing half-written is left.
    assert {file.name for file in path.parent.iterdir()} == {"fit.npz"}


def test_an_interrupted_loop_within_resumable_goes_on_from_the_one_file(tmp_path, monkeypatch):
    """Its state is in the file of the results, and is forgotten with the call it is part of."""
    fit = lambda: tg.minimize(num_steps=60, progress=False, **settings("fixed"))
    whole, path = fit(), tmp_path / "work.npz"
    chunks, advance = [], loop.advance

    def interrupted(*args, **kwargs):
        chunks.append(1)
        if len(chunks) == 4:
            raise KeyboardInterrupt
        return advance(*args, **kwargs)

    def attempt():
        with fitting.resumable(path, save_every=0.0):
            return fitting.computed("outer", lambda: {"trace": fit().loss_trace})["trace"]

    monkeypatch.setattr(loop, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attempt()
    assert list(checkpoint.contents(path)[0]["entries"]) == ["outer-1.fit-1"]
    np.testing.assert_array_equal(attempt(), whole.loss_trace)
    monkeypatch.undo()
    header, arrays = checkpoint.contents(path)
    assert list(header["entries"]) == ["outer-1"] and len(arrays) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"work.npz"}


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    path, fixed = tmp_path / "fit.npz", settings("fixed")
    kept(path, num_steps=5, **fixed)
    for change, message in (
        ({"start": jnp.zeros(3) + 0.1}, "belongs to another fit: start differ"),
        ({"optimizer": ADAM}, "does not fit: state/opt_state"),
    ):
        with pytest.raises(ValueError, match=message):
            kept(path, num_steps=5, **fixed | change)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is no checkpoint"):
        kept(path, num_steps=5, **fixed)


def scaled_valley(scale):
    return lambda x: scale * valley(x)


def test_a_checkpoint_knows_the_code_and_the_data_of_a_plain_function(tmp_path):
    path, start = tmp_path / "fit.npz", jnp.array([-1.0, 2.0, 0.5])
    fit = lambda objective: kept(path, objective, start, num_steps=5)
    first = fit(scaled_valley(2.0))
    again = fit(scaled_valley(2.0))  # the same function, made anew
    np.testing.assert_array_equal(first.loss_trace, again.loss_trace)
    for other in (scaled_valley(3.0), scaled_valley(jnp.ones(())), lambda x: valley(x) ** 2):
        with pytest.raises(ValueError, match="belongs to another fit: code differ"):
            fit(other)


def stored(path):
    """A state in a file, and what it belongs to."""
    belongs = checkpoint.fingerprint(start="a")
    state = {"x": jnp.arange(3.0), "key": jax.random.key(1)}
    with fitting.resumable(path), checkpoint.Checkpoint(state, belongs):
        pass
    return state, belongs


def test_any_damage_to_a_checkpoint_is_told_in_a_sentence(tmp_path):
    path = tmp_path / "state.npz"
    stored(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged[: rng.integers(len(whole) // 2, len(whole) + 1)])
        try:
            checkpoint.contents(path)
        except ValueError as error:
            assert "is no checkpoint of a fit" in str(error) or "has format" in str(error)
            refused += 1
    assert refused > 50  # a few changes fall on padding, which no reader sees
    path.write_bytes(whole)
    with np.load(path) as file:
        altered = {name: file[name] for name in file.files}
    name = next(name for name in altered if altered[name].dtype == float)
    np.savez(path, **(altered | {name: np.full(3, 5.0)}))  # a whole archive, of other numbers
    with (
        pytest.raises(ValueError, match=r"its digest does not agree .* or remove the file"),
        fitting.resumable(path),
    ):
        pytest.fail("a damaged file was taken")


def test_a_failing_write_leaves_the_old_state(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    state, belongs = stored(path)
    before, other = path.read_bytes(), {"x": jnp.zeros(3), "key": jax.random.key(2)}

    def failing(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", failing)
    with (
        pytest.raises(OSError, match="disk full"),
        fitting.resumable(path),
        checkpoint.Checkpoint(state, belongs) as kept,
    ):
        kept.update(other)
    monkeypatch.undo()
    gc.collect()  # of the error's frames, which ended Python 3.12 where they held a view of bytes
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    with fitting.resumable(path), checkpoint.Checkpoint(other, belongs) as kept:
        np.testing.assert_array_equal(kept.state["x"], state["x"])
        assert jax.random.normal(kept.state["key"]) == jax.random.normal(state["key"])


CALLS = []


def work(size):
    CALLS.append(size)
    values = {"x": jnp.arange(float(size)), "of": [1, 2.5, "a", None, True], "nothing": {}}
    return values | {"pair": (np.float32(2),), "nan": float("nan")}


def test_calls_within_resumable_are_made_once_and_give_the_same(tmp_path):
    path, plain = tmp_path / "folder" / "work.npz", work(3)
    CALLS.clear()
    for _ in range(2):
        with fitting.resumable(path, settings="a"):
            found = [fitting.computed("work", work, size) for size in (3, 4)]
        assert CALLS == [3, 4]
        assert found[0]["of"] == plain["of"] and found[0]["nothing"] == {}
        assert found[0]["pair"] == (2.0,) and found[0]["pair"][0].dtype == np.float32
        np.testing.assert_array_equal(found[1]["x"], np.arange(4.0))
        assert np.isnan(found[0]["nan"]) and isinstance(found[0]["x"], np.ndarray)
    with pytest.raises(ValueError, match="settings differ"), fitting.resumable(path, settings="b"):
        pytest.fail("the file of other settings was taken")
    with (
        pytest.raises(ValueError, match="its call work-1 was made with other data"),
        fitting.resumable(path, settings="a"),
    ):
        fitting.computed("work", work, 5)
    with fitting.resumable(tmp_path / "odd.npz"):
        with pytest.raises(TypeError, match="odd-1: a kept result must be numbers.*got object"):
            fitting.computed("odd", object)
        with pytest.raises(TypeError, match="keys of a kept result must be texts, got 3"):
            fitting.computed("odd", lambda: {3: 4})
    assert not (tmp_path / "odd.npz").exists()


STEPS = []


def step(number):
    STEPS.append(number)
    if len(STEPS) == 8:  # the last of the second row, at the first attempt
        raise KeyboardInterrupt
    return np.full(3, number)


def row(first):
    found = [fitting.computed("step", step, first + number)[0] for number in range(4)]
    return {"total": int(np.sum(found))}


def test_calls_within_calls_are_counted_by_themselves(tmp_path):
    """A row that is not computed again does not shift the numbers of the calls behind it."""
    path = tmp_path / "work.npz"

    def attempt():
        with fitting.resumable(path, save_every=0.0):
            return [fitting.computed("row", row, first)["total"] for first in (0, 10)]

    with pytest.raises(KeyboardInterrupt):
        attempt()
    assert len(checkpoint.contents(path)[0]["entries"]) == 4  # a row, and three steps of the other
    assert attempt() == [6, 46]
    assert STEPS == [0, 1, 2, 3, 10, 11, 12, 13, 13]
    header, arrays = checkpoint.contents(path)
    assert list(header["entries"]) == ["row-1", "row-2"] and not arrays
