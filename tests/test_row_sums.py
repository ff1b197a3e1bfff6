"""Fits of rows of which each process holds its own, here threads that exchange through a barrier.

Real processes do the same in tests/test_distributed.py.
"""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.execution import distributed, parallel, row_sums
from truncgauss.execution.checkpoint import words_of
from truncgauss.execution.row_sums import RowSums, Share
from truncgauss.fitting import centring
from truncgauss.fitting.gaussian_starts import as_designs
from truncgauss.fitting.observations import GaussianRows
from truncgauss.likelihood import local_rows, summary_of
from truncgauss.tables import Table

RNG = np.random.default_rng(5)
N = 61  # a prime
X = np.column_stack([np.ones(N), RNG.normal(size=N), RNG.normal(size=N) + 300.0])
Y = X @ [0.5, 1.0, -0.2] + RNG.normal(size=N)
LOW = Y - RNG.exponential(size=N) - 0.5


@pytest.fixture
def processes(monkeypatch):
    """What a function of each thread's share returns; the threads are processes to each other."""
    own = threading.local()

    def of_spread(what, tree):
        share = getattr(own, "share", None)
        spread = share and any(np.shape(leaf)[:1] == (N,) for leaf in jax.tree.leaves(tree))
        return RowSums(share if spread else None)

    monkeypatch.setattr(row_sums, "of_spread", of_spread)

    def run(function, total=N, count=3):
        barrier, said, results = threading.Barrier(count, timeout=900), [None] * count, {}

        def exchanged(tree):
            said[own.index] = tree
            barrier.wait()
            found = list(said)
            barrier.wait()
            return found

        monkeypatch.setattr(distributed, "exchanged", exchanged)
        monkeypatch.setattr(parallel, "all_bytes", exchanged)
        ends = [total * k**2 // count**2 for k in range(count + 1)]  # unequal parts

        def body(index):
            own.index, own.share = index, Share(ends[index], ends[index + 1], total)
            try:
                results[index] = function(own.share)
            except ValueError as error:  # for the test to look at
                results[index] = error

        threads = [threading.Thread(target=body, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[index] for index in range(count)]

    return run


def test_sums_over_processes_are_those_of_all_rows(processes):
    values = RNG.normal(size=(N, 4))

    def results(share):
        sums = RowSums(share)
        own = sums.local(values)
        return (
            sums.sum(own.sum(axis=0)),
            sums.max(own.max(axis=0)),
            np.array(sums.count(own)),
            sums.norm(own),
            sums.std(own),
            np.array(sums.median(own[:, 0])),
            sums.least_squares(own[:, :3], own[:, 3]),
            np.abs(sums.triangle(own)),
            np.array([sums.all(share.begin >= 0), sums.all(share.begin == 0)]),
            np.array([sums.any(share.begin < 0), sums.any(share.begin == 0)]),
        )

    expected = (
        values.sum(axis=0),
        values.max(axis=0),
        np.array(N),
        np.linalg.norm(values, axis=0),
        values.std(axis=0),
        np.array(np.median(values[:, 0])),
        np.linalg.lstsq(values[:, :3], values[:, 3], rcond=None)[0],
        np.abs(np.linalg.qr(values, mode="r")),
        np.array([True, False]),
        np.array([False, True]),
    )
    for parts in processes(results):
        for part, whole in zip(parts, expected, strict=True):
            np.testing.assert_allclose(part, whole, rtol=1e-12, atol=1e-13)


def test_a_median_of_many_values_is_near(processes, monkeypatch):
    monkeypatch.setattr(row_sums, "SKETCH", 300)
    values = np.sort(RNG.exponential(size=20_000))

    def median_of(share):
        return RowSums(share).median(share.of(values))

    for median in processes(median_of, len(values)):
        assert abs(np.mean(values <= median) - 0.5) < 0.01


def test_a_median_of_many_values_on_one_process_is_that_of_a_sample(monkeypatch):
    monkeypatch.setattr(row_sums, "SKETCH", 3000)
    values = np.tile(np.sort(RNG.exponential(size=10_000)), 2)  # of a period, which samples miss
    assert abs(np.mean(values <= RowSums().median(values)) - 0.5) < 0.03
    assert RowSums().median(values[:3000]) == np.median(values[:3000])


def test_products_in_blocks_are_those_of_all_rows(monkeypatch):
    monkeypatch.setattr(row_sums, "BLOCK", 7)
    columns, values, weights = RNG.normal(size=(N, 3)), RNG.normal(size=N), RNG.uniform(size=N)
    both = np.column_stack([columns, values])
    exact = row_sums.products_of(columns, values, weights)
    np.testing.assert_allclose(exact, both.T @ (weights[:, None] * both), rtol=1e-13)
    rows = RNG.integers(N, size=2 * N)
    some = row_sums.products_of(columns, rows=rows)
    np.testing.assert_allclose(some, columns[rows].T @ columns[rows], rtol=1e-13)


@pytest.mark.parametrize("many", [1, 10 * N])
def test_least_squares_and_triangles_of_few_rows_and_many(many, monkeypatch):
    monkeypatch.setattr(row_sums, "MANY", many)
    columns, values = RNG.normal(size=(N, 3)), RNG.normal(size=N)
    weights, units = RNG.integers(0, 3, N).astype(float), np.array([1e-3, 1.0, 1e3])
    rows = np.repeat(np.arange(N), weights.astype(int))
    wanted = np.linalg.lstsq(columns[rows], values[rows], rcond=None)[0]
    found = RowSums().least_squares(columns, values, weights)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    plain = RowSums().least_squares(columns, values)
    np.testing.assert_allclose(plain, np.linalg.lstsq(columns, values, rcond=None)[0], rtol=1e-12)
    triangle = RowSums().triangle(columns * units, units)
    np.testing.assert_allclose(triangle.T @ triangle, columns.T @ columns, rtol=1e-12)


def test_covariates_of_many_rows_are_white(monkeypatch):
    """In blocks, without a change of the user's array."""
    for module, name in ((row_sums, "MANY"), (row_sums, "BLOCK"), (centring, "BLOCK")):
        monkeypatch.setattr(module, name, 16)
    constant = np.column_stack([RNG.normal(5.0, 1.0, N), np.ones(N), RNG.normal(size=N)])
    late = constant[:, [0, 2, 2]]
    late[:, 1] = np.where(np.arange(N) < 20, 1.0, 2.0)  # constant in the first block alone
    for design in (constant, np.asfortranarray(constant), late):
        before = design.copy()
        white = centring.whitened(Table(design), None, "columns")
        np.testing.assert_array_equal(design, before)
        assert white.design.flags.c_contiguous
        np.testing.assert_allclose(white.design.T @ white.design / N, np.eye(3), atol=1e-13)
        np.testing.assert_allclose(design @ white.transform, white.design, atol=1e-12)
        assert (white.constant is None) == (design is late)


def test_the_fingerprint_of_rows_depends_on_the_rows_alone(processes):
    rows = np.column_stack([Y, X])

    def words(share, rows=rows, counted=None):
        own = None if counted is None else share.of(counted)
        columns = [share.of(rows[:, 0]), share.of(rows)]
        return np.asarray(row_sums.fingerprint_of(columns, own, share.begin))

    (first, *others), [alone] = processes(words), processes(words, count=1)
    assert all(np.array_equal(first, other) for other in (*others, alone))
    filled, counted = np.concatenate([rows, rows[-1:]]), np.arange(N + 1) < N
    for found in processes(lambda share: words(share, filled, counted), N + 1, 2):
        assert np.array_equal(found, first)
    for other in (rows[::-1], np.where(rows == rows[7, 0], 0.0, rows), rows[:, ::-1]):
        assert not np.array_equal(processes(lambda share, rows=other: words(share, rows))[0], first)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_the_words_of_an_array_do_not_depend_on_where_its_elements_lie(dtype):
    values = (10 * np.maximum(RNG.normal(size=(4, 8, 3)), 0.0)).astype(dtype)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    specs = [(), ("a",), ("b", "a"), (None, ("a", "b"))]

    def words(values, spec=()):
        placement = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return words_of(jax.device_put(jnp.asarray(values), placement)).tolist()

    first, *others = (words(values, spec) for spec in specs)
    assert all(other == first for other in others)
    changed = values.copy()
    changed[3, 5, 2] = not changed[3, 5, 2]
    assert words(changed) != first and words(values[::-1]) != first


def censored_pairs():
    """Rows with exact, missing and censored entries, noise and weights, and their covariates."""
    lower = np.column_stack([Y, Y + RNG.normal(size=N)])
    upper = lower.copy()
    lower[::5, 0], lower[1::7, 1], upper[1::7, 1] = -np.inf, -np.inf, np.inf
    noise, weights = np.full((N, 2), 0.1) + 0.2 * (X[:, 1:2] > 0), 1.0 * (np.arange(N) % 4 > 0)
    return tg.Observations(lower, upper, noise=noise, weights=weights)


def test_the_summary_of_rows_is_that_of_all_wherever_they_lie(processes):
    rows = censored_pairs()

    def summary(share):
        sums = RowSums(share)
        designs = X, np.where(np.arange(N)[:, None] == 30, X + 1.0, X)
        return summary_of(local_rows(rows, sums), sums, tuple(map(sums.local, designs)))

    one = summary(None)
    assert one.num_rows == N and not one.exact and one.noise_definite
    assert one.limited == 1 and one.num_triple == 0 and one.equal_designs.tolist() == [
        [True, False], [False, True]
    ]  # fmt: skip
    np.testing.assert_array_equal(one.num_exact, [36, 38])
    for found in processes(summary):
        for part, whole in zip(found, one, strict=True):
            np.testing.assert_allclose(part, whole, rtol=1e-14)


def test_reading_of_a_model_exchanges_nothing(processes, monkeypatch):
    """So that processes may read its attributes in any order."""
    rows = censored_pairs()

    def model(share):
        with jax.enable_x64(True):
            sums = RowSums(share)
            local, design = local_rows(rows, sums), sums.local(X)
            designs = as_designs(design, len(design), 2, np.asarray(local.weights), sums=sums)
            return GaussianRows.of(local, designs, "full", sums=sums)

    models, read = processes(model), []
    monkeypatch.setattr(distributed, "exchanged", None)
    for name in {name for name in dir(models[0]) if not name.startswith("_")} - {"simple_loss"}:
        read.append([getattr(model, name) for model in models])  # the one for one outcome is apart
    assert len(read) > 20


def assert_same(fits, one):
    assert one.converged
    for fit in fits:
        assert fit.converged and fit.notes == one.notes
        np.testing.assert_allclose(fit.estimates, one.estimates, rtol=1e-10)
        np.testing.assert_allclose(fit.errors, one.errors, rtol=1e-8)
        np.testing.assert_allclose(fit.log_likelihood, one.log_likelihood, rtol=1e-11)
        np.testing.assert_allclose(fit.fraction_not_truncated, one.fraction_not_truncated)


@pytest.mark.quick("sandwich")
@pytest.mark.parametrize("information", ["observed", "sandwich"])
def test_a_regression_of_spread_rows_is_that_of_all(information, processes):
    def fit(share=None):
        return tg.fit_regression(
            np.maximum(Y, LOW + 0.4), X, censored_low=LOW + 0.4, truncated_low=LOW - 0.1,
            information=information, num_starts=1,
        )  # fmt: skip

    assert_same(processes(fit), fit())


@pytest.mark.full
def test_residuals_of_spread_rows_are_those_of_all(processes):
    ends = np.column_stack([Y, np.where(Y > LOW + 2.0, np.inf, Y)])

    def found(share=None):
        fit = tg.fit_regression(ends, X[:, :2], truncated_low=LOW, num_starts=1)
        draws = tg.quantile_residuals(fit, jax.random.key(3), num_draws=2)
        return fit, draws

    fits, draws = zip(*processes(found, count=2))
    one, all_draws = found()
    assert_same(fits, one)
    np.testing.assert_allclose(np.concatenate(draws, axis=1), all_draws, rtol=1e-7)


def test_a_scale_that_depends_on_covariates_and_a_profile(processes):
    def fit(share=None):
        fit = tg.fit_regression(Y, X[:, :2], scale_design=X[:, :2], num_starts=1)
        return fit, fit.profile("log_scale[1]"), fit.profile_fall("coefficients[1]", 1.0)

    fits, ends, falls = zip(*processes(fit))
    one, interval, fall = fit()
    assert_same(fits, one)
    np.testing.assert_allclose(ends, np.tile(interval, (3, 1)), rtol=1e-6)
    np.testing.assert_allclose(falls, fall, rtol=1e-6)


@pytest.mark.slow
def test_rows_that_are_known_in_part(processes):
    """Exact, missing and censored entries, with noise and weights, and covariates far from 0."""
    rows = censored_pairs()
    fit = lambda share=None: tg.fit_observations(rows, X, num_starts=1)
    assert_same(processes(fit), fit())


@pytest.mark.slow
def test_integrals_by_points_have_the_keys_of_their_rows(processes):
    """Four dimensions: every row draws the points that it draws beside all others."""
    values = RNG.normal(size=(N, 4))
    box = tg.Box(values - RNG.exponential(size=(N, 4)) - 0.3, jnp.inf)
    rows = tg.Observations.exact(values, region=box)
    method = tg.Separation(num_points=16, num_replicates=4)
    fit = lambda share=None: tg.fit_observations(rows, covariance="diagonal", method=method)
    found, one = processes(fit), fit()
    assert_same(found, one)
    np.testing.assert_allclose([f.log_likelihood_stderr for f in found], one.log_likelihood_stderr)


def test_that_there_is_no_maximum_is_seen_in_all_rows(processes, monkeypatch):
    """Separated rows, though those of no process alone speak for it, by programs of few rows."""
    monkeypatch.setattr(tg.fitting.existence, "MANY", 20)
    above = X[:, 1] > 0.1
    ends = np.column_stack([np.where(above, 0.0, -np.inf), np.where(above, np.inf, 0.0)])
    known = np.ones((1, 1))
    fit = lambda share=None: tg.fit_observations(
        tg.Observations(*ends.T), X[:, :2], covariance=known
    )
    one = fit()
    assert not one.converged and "separated" in one.reason
    for found in processes(fit):
        assert not found.converged and found.reason == one.reason


def test_what_is_wrong_on_one_process_is_said_on_all(processes):
    wrong = np.where(np.arange(N) == 10, LOW - 1.0, Y)
    for error in processes(lambda share: tg.fit_regression(wrong, X, truncated_low=LOW)):
        assert "process 1, of its own rows: fit_regression: 1 of" in str(error)
    rows = tg.Observations.exact(Y, weights=1.0 * (np.arange(N) > 20))
    for error in processes(lambda share: tg.fit_observations(rows)):
        assert "process 0, of its own rows: Observations: weights must be" in str(error)


def test_processes_at_different_parameters_are_refused(processes):
    fits = processes(lambda share: tg.fit_observations(tg.Observations.exact(Y)))
    at = lambda share: row_sums.evaluated(
        lambda loss, x: loss(x), fits[0].loss, jnp.zeros(2) + share.begin
    )
    for error in processes(at):
        assert "at different parameters" in str(error)


def assert_same_mixture(fits, one):
    assert one.converged
    for fit in fits:
        assert fit.converged and fit.notes == one.notes
        np.testing.assert_allclose(fit.estimates, one.estimates, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(fit.errors, one.errors, rtol=1e-7)
        for name in ("log_likelihood", "icl", "start_log_likelihoods", "fraction_not_truncated"):
            np.testing.assert_allclose(getattr(fit, name), getattr(one, name), rtol=1e-10)
    shares = np.concatenate([fit.responsibilities for fit in fits])
    np.testing.assert_allclose(shares, one.responsibilities, atol=1e-9)


@pytest.mark.full
def test_a_mixture_of_spread_rows_is_that_of_all(processes):
    """With a prior, which counts once, though two processes know of it."""
    far = np.where(np.arange(N) % 3 == 0, 5.0, 0.0)
    rows = tg.Observations.exact(np.abs(far + RNG.normal(size=N)))
    fit = lambda share=None: tg.fit_mixture(rows, 2, num_starts=1, prior_rows=1.0)
    assert_same_mixture(processes(fit, count=2), fit())


@pytest.mark.slow
def test_a_mixture_of_rows_known_in_part(processes):
    """Missing and censored entries with noise behind limits of their own; errors by the scores."""
    far = np.where(np.arange(N) % 3 == 0, 4.0, 0.0)[:, None]
    lower = np.abs(far + RNG.normal(size=(N, 2)))
    lower[::7, 1], upper = -np.inf, lower.copy()
    upper[1::9, 0] = np.inf
    region = tg.Box(
        np.where(np.isinf(lower), 0.0, lower - 0.5 - RNG.exponential(size=(N, 2))), np.inf
    )
    rows = tg.Observations(lower, upper, region=region, noise=0.01 + 0.1 * RNG.random((N, 2)))
    fit = lambda share=None: tg.fit_mixture(rows, 2, num_starts=1, information="sandwich")
    assert_same_mixture(processes(fit, count=2), fit())


def test_a_broken_connection_is_no_mistake_of_the_user_s(monkeypatch):
    """JAX may report the end of another process as ValueError, which would stand for bad input."""

    def broken(array):
        raise ValueError("UNKNOWN: Gloo AllGather failed: connection reset by peer")

    monkeypatch.setattr(parallel, "everywhere", broken)
    with pytest.raises(RuntimeError, match="another one has ended: UNKNOWN: Gloo"):
        parallel.all_bytes(b"1")
