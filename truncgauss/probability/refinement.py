"""The allocation of draws by the default method: which rows need more points, and when to stop."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays.batches import (
    flattened,
    in_batches,
    joined,
    padded_to_power_of_two,
    problem_rows,
    rows_in_memory,
    rows_of,
)
from truncgauss.arrays.linalg import ranks_of
from truncgauss.arrays.progress import bar
from truncgauss.arrays.pytrees import is_concrete
from truncgauss.gaussian.covariances import numbers_of
from truncgauss.gaussian.problem import Estimate, Problem, on_device
from truncgauss.probability.method import (
    Chooser,
    Method,
    estimate,
    estimate_with_gradient,
    prepared,
)

FAILURE = 0.05  # for rows with a larger stderr another method is tried
MARGIN = 2.0  # points are added for a stderr of rtol over this
STEP = 4  # the number of points grows by this factor, its square or its cube
LEAST_RATE = 0.25  # no points are added where the stderr falls more slowly than n^-1/4

MET, SPENT, STUCK = "", "the draws allowed by max_draws are spent", "more points help too little"


class Goal(NamedTuple):
    """A quantity to compute, and its error.

    Attributes:
        evaluate: (method, problem, key) -> the result: a tree of arrays, NaN in the first leaf for
            rows without a result.
        error: the estimated error of each row of a result.
        differentiates: whether `evaluate` takes derivatives, so that counts have to be static.
    """

    evaluate: Callable[[Method, Problem, jax.Array], Any]
    error: Callable[[Any], np.ndarray]
    differentiates: bool = False


def errors(result: Estimate) -> np.ndarray:
    """The stderr of each row, with 0 for unknown ones."""
    stderr = np.asarray(result.stderr, float)
    return np.where(np.isnan(stderr), 0.0, stderr)


def cost(method: Method, problem: Problem) -> int:
    """The cost of one row, in coordinates of lattice points."""
    price = 1 if method.growth is None else method.growth.price
    return price * method.count * method.num_replicates * problem.covariance.dimension


class Attempt(NamedTuple):
    """A method tried on some rows, with its last number of points, and its largest error there.

    Attributes:
        held: the method with its plan, which it began with.
        rows: the indices of these rows.
    """

    method: Method
    error: float
    ending: str
    held: Method
    rows: np.ndarray


Recipe = tuple[tuple[Method, np.ndarray | None], ...]


class Answer(NamedTuple):
    """The result of every row, with the methods that it comes from.

    Attributes:
        method: that of the first row, with its plan held.
        result: tree of arrays with the leading axes of the problem.
        attempts: the methods tried, in order, for `explain`.
        recipe: the held methods of the result, each with its rows of the flattened problem, None
            for all.
    """

    method: Method
    result: Any
    attempts: tuple[Attempt, ...] = ()
    recipe: Recipe = ()


class Search:
    """The best result of each row so far, and the remaining budget of draws.

    Args:
        problem: of numbers, not tracers.
        key: for every method and row.
        goal: the quantity to compute.
        rtol: the error to reach.
        max_draws: coordinates to draw at most; the first estimate by each method is always made.
    """

    def __init__(self, problem: Problem, key: jax.Array, goal: Goal, rtol: float, max_draws: int):
        self.shape = problem.batch_shape
        self.problem, self.key, self.goal, self.rtol = flattened(problem), key, goal, rtol
        self.left: float = max_draws
        self.error = np.full(math.prod(self.shape), math.inf)
        self.owner = np.full(len(self.error), -1)  # index of the attempt of each row's result
        self.attempts: list[Attempt] = []
        self.result: Any = None
        self.evaluations: list[tuple[Method, np.ndarray]] = []
        self.evaluation = np.full(len(self.error), -1)  # index of that of each row's result

    def begin(self, method: Method, result: Any, error: np.ndarray) -> None:
        self.error, self.owner = error.reshape(-1), np.zeros(len(self.error), int)
        largest, rows = float(self.error.max(initial=0.0)), np.arange(len(self.error))
        self.attempts.append(Attempt(method, largest, MET, method, rows))
        self.evaluations.append((method, rows))
        self.evaluation[:] = 0
        flat = lambda leaf: np.asarray(leaf).reshape(-1, *np.shape(leaf)[len(self.shape) :])
        self.result = jax.tree.map(flat, result)

    def attempt(self, method: Method, above: float, factor: int = 1) -> None:
        """Evaluate a method on rows with an error above `above`, and keep the better results.

        Those of them that stay above rtol get `factor` times the points at once.
        """
        rows = np.flatnonzero(self.error > above)
        rows = rows if len(rows) == len(self.error) else padded_to_power_of_two(rows)
        held = method.planned(problem_rows(self.problem, rows))
        error = self._evaluated(held, held, rows)
        self.owner[self.evaluation == len(self.evaluations) - 1] = len(self.attempts)
        method = held
        needy = np.flatnonzero((self.owner == len(self.attempts)) & (self.error > self.rtol))
        if factor > 1 and len(needy):
            # Filled up to a number for which the program is compiled: at the few points of a
            # beginning rows are computed sooner than another program is compiled.
            compiled = min(len(rows), rows_in_memory(held.in_pieces(1), self.problem))
            needy = padded_to_power_of_two(needy, compiled)
            more = held.enlarged(factor)
            if cost(more, self.problem) * len(needy) <= self.left:
                method = more
                self._evaluated(self._of_rows(held, rows, needy), more, needy)
        self.attempts.append(Attempt(method, float(error.max()), MET, held, rows))

    def refine(self) -> None:
        """Add points for rows above rtol, where it helps and within the budget."""
        for index, attempt in enumerate(self.attempts):
            mine = self.owner == index
            if attempt.held.growth is None or not mine.any():
                continue
            # An infinite error, from too few effective points, gets one step to become finite.
            unknown = np.isnan(jax.tree.leaves(self.result)[0].reshape(len(self.error), -1))
            method, hopeful, ending = attempt.method, mine & ~np.any(unknown, axis=1), MET
            while len(needy := np.flatnonzero(hopeful & (self.error > self.rtol))):
                factor, needy = self._affordable(method, needy)
                if factor == 1:
                    ending = SPENT
                    break
                method, needy = method.enlarged(factor), padded_to_power_of_two(needy)
                before = self.error[needy]
                held = self._of_rows(attempt.held, attempt.rows, needy)
                error = self._evaluated(held, method, needy)
                stuck = ~(error < before * factor**-LEAST_RATE)
                hopeful[:] = False
                hopeful[needy[~stuck]] = True
                if np.any(stuck & (error > self.rtol)):
                    ending = STUCK
            if ending != SPENT and np.any(mine & np.isinf(self.error)):
                ending = STUCK
            largest = float(self.error[mine].max())
            self.attempts[index] = attempt._replace(method=method, error=largest, ending=ending)

    def _of_rows(self, held: Method, rows: np.ndarray, chosen: np.ndarray) -> Method:
        """The method for the chosen ones of the rows that its plans are for."""
        position = np.zeros(len(self.error), int)
        position[rows] = np.arange(len(rows))
        return rows_of(held, position[chosen])

    def _affordable(self, method: Method, needy: np.ndarray) -> tuple[int, np.ndarray]:
        """The affordable factor of the number of points, and the rows that it is affordable for."""
        rate = 1.0 if method.growth is None else method.growth.rate
        needed = (MARGIN * self.error[needy] / self.rtol) ** rate
        factor = STEP if needed.max() <= STEP else STEP**2
        # At once where every row needs as many, since the points on the way are computed again.
        if STEP**3 <= needed.min() < math.inf:
            factor = STEP**3
        needy = needy[np.argsort(self.error[needy], kind="stable")]
        row = cost(method, self.problem)
        while factor * row * len(padded_to_power_of_two(needy)) > self.left:
            if factor > STEP:
                factor //= STEP
            elif len(needy) > 1:
                needy = needy[: len(padded_to_power_of_two(needy)) // 2]
            else:
                return 1, needy
        return factor, needy

    def _evaluated(self, held: Method, method: Method, rows: np.ndarray) -> np.ndarray:
        """The errors of rows by a held method, whose better results are kept, or by the same with
        more points, whose results are kept in any case."""
        growth = method.count // held.count
        self.evaluations.append((held.enlarged(growth), rows))
        self.left -= cost(method, self.problem) * len(rows)
        method = held.enlarged(growth) if self.goal.differentiates else held.in_pieces(growth)
        problem = problem_rows(self.problem, rows)
        points = f"{method.count * method.num_replicates} points"
        many = f" in each of {len(rows)} rows" if len(rows) > 1 else ""
        with bar(None, points + many, True):
            result = jax.block_until_ready(
                in_batches(self.goal.evaluate, method, problem, self.key)
            )
        error = np.asarray(self.goal.error(result), float).reshape(-1)
        first = np.asarray(jax.tree.leaves(result)[0]).reshape(len(error), -1)
        error = np.where(np.isnan(first).any(axis=1), math.inf, error)
        alone = problem.batch_shape == ()
        # Kept as NumPy arrays: each small operation of JAX would be compiled.
        kept = lambda leaf: np.asarray(leaf)[None] if alone else np.array(leaf)
        result = jax.tree.map(kept, result)
        better = (error < self.error[rows]) | (self.owner[rows] < 0) | (growth > 1)
        positions = rows[better]
        self.error[positions] = error[better]
        self.evaluation[positions] = len(self.evaluations) - 1

        def put(old: np.ndarray, leaf: np.ndarray) -> np.ndarray:
            whole = old.copy()
            whole[positions] = leaf[better]
            return whole

        everything = self.result is None
        self.result = result if everything else jax.tree.map(put, self.result, result)
        return error

    def answer(self) -> Answer:
        whole = lambda leaf: jnp.asarray(leaf.reshape(self.shape + leaf.shape[1:]), leaf.dtype)
        first = self.attempts[self.owner[0]].method
        result = jax.tree.map(whole, self.result)
        recipe: list[tuple[Method, np.ndarray | None]] = []
        for index in np.unique(self.evaluation):
            method, rows = self.evaluations[index]
            chosen = np.flatnonzero(self.evaluation == index)
            if len(chosen) == len(self.error) and np.array_equal(rows, chosen):
                recipe.append((method, None))
            else:
                recipe.append((self._of_rows(method, rows, chosen), chosen))
        return Answer(first, result, tuple(self.attempts), tuple(recipe))


# --- The default method's answer ------------------------------------------------------------------


PROBABILITY = Goal(estimate, errors)
WITH_GRADIENT = Goal(estimate_with_gradient, lambda result: errors(result[0]))


def answer(
    automatic: Chooser, problem: Problem, key: Array, goal: Goal, wanted: bool = True
) -> Answer:
    """The result of `Automatic` for one block, with the methods it is from and those tried.

    Where the result is not wanted, only its methods, it is computed if they depend on it.
    """
    chosen = automatic.choice(problem)
    if not is_concrete((problem, key)) or 0 in problem.batch_shape:
        chosen = prepared(chosen, problem)
        result = goal.evaluate(chosen, problem, key)
        return Answer(chosen, result, recipe=((chosen, None),))
    groups = rows_by_rank(problem)
    if len(groups) > 1:
        return _answer_of_groups(automatic, groups, problem, key, goal, wanted)
    if chosen.growth is not None:
        problem = on_device(problem)
    search, above = Search(problem, key, goal, automatic.rtol, automatic.max_draws), -1.0
    if chosen.growth is None:
        # An error then comes from the rounding of the inputs, which no other method mends.
        exact = problem.region.is_quadratic or problem.region.is_outside
        own = type(chosen) in problem.covariance.methods  # the last word on such a covariance
        certain = problem.covariance.dimension <= 3 or exact or own
        if certain and not wanted:
            return Answer(chosen, None, recipe=((chosen, None),))
        result = in_batches(goal.evaluate, chosen, problem, key)
        if certain:
            return Answer(chosen, result, recipe=((chosen, None),))
        first = jax.tree.leaves(result)[0]
        axes = tuple(range(len(problem.batch_shape), first.ndim))
        unknown = np.any(np.isnan(first), axis=axes) & ~np.any(np.isnan(problem.loc), axis=-1)
        error = np.where(unknown, math.inf, goal.error(result))
        if np.all(error <= automatic.rtol):
            return Answer(chosen, result, recipe=((chosen, None),))
        # A chain whose grid is too coarse, or factors with nearly no noise.
        search.begin(chosen, result, error)
        above = automatic.rtol
    num_rows = len(search.error)
    begin, full = automatic.counts(search.problem, num_rows)
    for method in automatic.candidates(search.problem, num_rows):
        if method.growth is None:
            continue
        factor = full // begin if method.grows_by_pieces else 1
        if goal.differentiates:  # more points are another program
            method, factor = method.enlarged(factor), 1
        search.attempt(method, above, factor)
        above = max(above, FAILURE)
        if not np.any(search.error > above):
            break
    search.refine()
    return search.answer()


def _answer_of_groups(
    automatic: Chooser,
    groups: list[np.ndarray],
    problem: Problem,
    key: Array,
    goal: Goal,
    wanted: bool,
) -> Answer:
    """The result of every row, those of each group chosen and computed apart."""
    flat, shape = flattened(problem), problem.batch_shape
    count = math.prod(shape)
    answers, recipe = [], []
    for rows in groups:
        # As many rows as there are in all, or a power of two: for these programs are compiled.
        some_rows = padded_to_power_of_two(rows, count if 2 * len(rows) > count else 0)
        of_rows = answer(automatic, problem_rows(flat, some_rows), key, goal, wanted)
        answers.append(of_rows)
        for method, chosen in of_rows.recipe:
            chosen = np.arange(len(some_rows)) if chosen is None else chosen
            kept = np.flatnonzero(chosen < len(rows))
            recipe.append((rows_of(method, kept), rows[chosen[kept]]))
    results = [of_rows.result for of_rows in answers]
    whole = all(result is not None for result in results)
    result = joined(results, groups, shape) if whole else None
    first = answers[next(k for k, rows in enumerate(groups) if 0 in rows)].method
    attempts = sum((of_rows.attempts for of_rows in answers), ())
    return Answer(first, result, attempts, tuple(recipe))


def rows_by_rank(problem: Problem) -> list[np.ndarray]:
    """The rows of a problem of numbers, grouped by the rank of their covariances up to rounding,
    which determines the methods in three and more dimensions: `Exact` has all ranks in two."""
    _, covariance, region = problem
    one = problem.batch_shape == () or covariance.batch_shape == ()
    small = covariance.dimension <= 2 or not region.is_linear
    if one or small or not covariance.is_dense:
        return []
    if region.is_box and covariance.dimension == 3:
        ranks = ranks_of(numbers_of(covariance))
    else:
        from truncgauss.separation.planning import ranks_of_limits

        ranks, _ = ranks_of_limits(problem)
    ranks = np.broadcast_to(ranks, problem.batch_shape).reshape(-1)
    return [np.flatnonzero(ranks == rank) for rank in np.unique(ranks)]
