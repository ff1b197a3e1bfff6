"""The allocation of draws by the default method: which rows need more points, and when to stop."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.probability.method import Method
from truncgauss.probability.row_batches import (
    at_once,
    flattened,
    in_batches,
    padded,
    some,
    taken,
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


def cost(method: Method, dimension: int) -> int:
    """The cost of one row, in coordinates of lattice points."""
    price = 1 if method.growth is None else method.growth.price
    return price * method.count * method.num_replicates * dimension


class Attempt(NamedTuple):
    """A method tried on some rows, with its last number of points, and its largest error there."""

    method: Method
    error: float
    ending: str


class Answer(NamedTuple):
    """The result of every row, with the methods that it comes from.

    Attributes:
        method: that of the first row, with its plan held.
        result: tree of arrays with the leading axes of the problem.
        attempts: the methods tried, in order, for `explain`.
        recipe: the held methods of the result, each with its rows of the flattened problem, None
            for all.
        gradient: the derivatives of the result, where they were computed with it.
    """

    method: Method
    result: Any
    attempts: tuple[Attempt, ...] = ()
    recipe: tuple[tuple[Method, np.ndarray | None], ...] = ()
    gradient: Problem | None = None


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
        # Held methods, their rows, and by what their points have been multiplied.
        self.plans: list[tuple[Method, np.ndarray, int]] = []
        self.result: Any = None
        self.evaluations: list[tuple[Method, np.ndarray]] = []
        self.evaluation = np.full(len(self.error), -1)  # index of that of each row's result

    def begin(self, method: Method, result: Any, error: np.ndarray) -> None:
        """Record the result of a method without a count as the best so far."""
        self.error, self.owner = error.reshape(-1), np.zeros(len(self.error), int)
        self.attempts.append(Attempt(method, float(self.error.max(initial=0.0)), MET))
        self.plans.append((method, np.arange(len(self.error)), 1))
        self.evaluations.append((method, np.arange(len(self.error))))
        self.evaluation[:] = 0
        flat = lambda leaf: np.asarray(leaf).reshape((-1, *self._event(leaf)))
        self.result = jax.tree.map(flat, result)

    def _event(self, leaf: jax.Array) -> tuple[int, ...]:
        return leaf.shape[len(self.shape) :]

    def attempt(self, method: Method, above: float, factor: int = 1) -> None:
        """Evaluate a method on rows with an error above `above`, and keep the better results.

        Those of them that stay above rtol get `factor` times the points at once.
        """
        rows = np.flatnonzero(self.error > above)
        if not len(rows):
            return
        rows = rows if len(rows) == len(self.error) else padded(rows)
        held = method.hold(*taken(self.problem, rows))
        result, error = self._evaluated(held, 1, rows)
        self.left -= cost(held, self._dimension) * len(rows)
        better = (error < self.error[rows]) | (self.owner[rows] < 0)
        self._keep(result, error, rows, better)
        self.owner[rows[better]] = len(self.attempts)
        factor = self._raised(held, rows, factor)
        mine = self.error[self.owner == len(self.attempts)]
        worst = float(mine.max()) if factor > 1 else float(error.max())
        self.attempts.append(Attempt(held.enlarged(factor), worst, MET))
        self.plans.append((held, rows, factor))

    def _raised(self, held: Method, rows: np.ndarray, factor: int) -> int:
        """The factor of the points that rows of the latest attempt above rtol got, else 1.

        The rows are filled up to a number for which the program is compiled: at the few points of a
        beginning they are computed sooner than another program is compiled.
        """
        needy = np.flatnonzero((self.owner == len(self.attempts)) & (self.error > self.rtol))
        if factor == 1 or not len(needy):
            return 1
        compiled = min(len(rows), at_once(held.in_pieces(1), self.problem))
        if len(needy) > compiled:
            needy = padded(needy)
        else:
            needy = np.concatenate([needy, np.full(compiled - len(needy), needy[0])])
        price = cost(held.enlarged(factor), self._dimension) * len(needy)
        if price > self.left:
            return 1
        position = np.zeros(len(self.error), int)
        position[rows] = np.arange(len(rows))
        result, error = self._evaluated(some(held, position[needy]), factor, needy)
        self.left -= price
        self._keep(result, error, needy, np.ones(len(needy), bool))
        return factor

    def refine(self) -> None:
        """Add points for rows above rtol, where it helps and within the budget."""
        for index, (held, rows, factor) in enumerate(self.plans):
            if held.growth is not None:
                method, ending = self._refined(held, rows, factor, rows_of=self.owner == index)
                mine = self.error[self.owner == index]
                if len(mine):
                    worst = float(mine.max())
                    self.attempts[index] = Attempt(method, worst, ending)

    def _refined(
        self, held: Method, rows: np.ndarray, factor: int, rows_of: np.ndarray
    ) -> tuple[Method, str]:
        """The method with its last number of points, and the reason to stop."""
        position = np.zeros(len(self.error), int)
        position[rows] = np.arange(len(rows))
        # An infinite error, from too few effective points, gets one step to become finite.
        unknown = np.isnan(jax.tree.leaves(self.result)[0].reshape(len(self.error), -1))
        hopeful, ending, method = rows_of & ~np.any(unknown, axis=1), MET, held.enlarged(factor)
        while len(needy := np.flatnonzero(hopeful & (self.error > self.rtol))):
            factor, needy = self._affordable(method, needy)
            if factor == 1:
                return method, SPENT
            method, needy = method.enlarged(factor), padded(needy)
            before, its = self.error[needy], some(held, position[needy])
            result, error = self._evaluated(its, method.count // held.count, needy)
            self.left -= cost(method, self._dimension) * len(needy)
            self._keep(result, error, needy, np.ones(len(needy), bool))
            stuck = ~(error < before * factor**-LEAST_RATE)
            hopeful[:] = False
            hopeful[needy[~stuck]] = True
            if np.any(stuck & (error > self.rtol)):
                ending = STUCK
        if np.any(rows_of & np.isinf(self.error)):
            ending = STUCK
        return method, ending

    def _affordable(self, method: Method, needy: np.ndarray) -> tuple[int, np.ndarray]:
        """The affordable factor of the number of points, and the rows that it is affordable for."""
        rate = 1.0 if method.growth is None else method.growth.rate
        needed = (MARGIN * self.error[needy] / self.rtol) ** rate
        factor = STEP if needed.max() <= STEP else STEP**2
        # At once where every row needs as many, since the points on the way are computed again.
        if STEP**3 <= needed.min() < math.inf:
            factor = STEP**3
        needy = needy[np.argsort(self.error[needy], kind="stable")]
        row = cost(method, self._dimension)
        while factor * row * len(padded(needy)) > self.left:
            if factor > STEP:
                factor //= STEP
            elif len(needy) > 1:
                needy = needy[: len(padded(needy)) // 2]
            else:
                return 1, needy
        return factor, needy

    def _evaluated(self, held: Method, factor: int, rows: np.ndarray) -> tuple[Any, np.ndarray]:
        """The results of rows by `factor` times the points of a held method, and their errors."""
        self.evaluations.append((held.enlarged(factor), rows))
        method = self.evaluations[-1][0] if self.goal.differentiates else held.in_pieces(factor)
        problem = taken(self.problem, rows)
        result = in_batches(self.goal.evaluate, method, problem, self.key)
        error = np.asarray(self.goal.error(result), float).reshape(-1)
        first = np.asarray(jax.tree.leaves(result)[0]).reshape(len(error), -1)
        error = np.where(np.isnan(first).any(axis=1), math.inf, error)
        alone = problem.batch_shape == ()
        # Kept as NumPy arrays: each small operation of JAX would be compiled.
        kept = lambda leaf: np.asarray(leaf)[None] if alone else np.array(leaf)
        return jax.tree.map(kept, result), error

    def _keep(self, result: Any, error: np.ndarray, rows: np.ndarray, better: np.ndarray) -> None:
        self.error[rows[better]] = error[better]
        self.evaluation[rows[better]] = len(self.evaluations) - 1
        if self.result is None:
            self.result = result
        elif np.any(better):
            positions, new = rows[better], np.flatnonzero(better)

            def put(old: np.ndarray, leaf: np.ndarray) -> np.ndarray:
                whole = old.copy()
                whole[positions] = leaf[new]
                return whole

            self.result = jax.tree.map(put, self.result, result)

    @property
    def _dimension(self) -> int:
        return self.problem.covariance.dimension

    def answer(self) -> Answer:
        """The result with the leading axes of the problem."""
        whole = lambda leaf: jnp.asarray(leaf.reshape(self.shape + leaf.shape[1:]), leaf.dtype)
        first = self.attempts[self.owner[0]].method
        result = jax.tree.map(whole, self.result)
        return Answer(first, result, tuple(self.attempts), tuple(self._recipe()))

    def _recipe(self) -> Iterator[tuple[Method, np.ndarray | None]]:
        for index in np.unique(self.evaluation):
            method, rows = self.evaluations[index]
            chosen = np.flatnonzero(self.evaluation == index)
            position = np.zeros(len(self.error), int)
            position[rows] = np.arange(len(rows))
            if len(chosen) == len(self.error) == len(rows) and np.all(position == chosen):
                yield method, None
            else:
                yield some(method, position[chosen]), chosen
