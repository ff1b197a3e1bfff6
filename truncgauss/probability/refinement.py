"""The allocation of draws by the default method: which rows need more points, and when to stop.

Rows are evaluated in batches of bounded memory.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays import parallel
from truncgauss.arrays.progress import bar
from truncgauss.arrays.pytrees import common_shape, is_concrete
from truncgauss.gaussian.problem import Estimate, LocRows, Problem
from truncgauss.probability.method import Method

FAILURE = 0.05  # for rows with a larger stderr another method is tried
MARGIN = 2.0  # points are added for a stderr of rtol over this
STEP = 4  # the number of points grows by this factor, its square or its cube
LEAST_RATE = 0.25  # no points are added where the stderr falls more slowly than n^-1/4

ARRAYS: Any = (Array, np.ndarray)
MOST_NUMBERS = 2**25  # in the arrays of one batch of rows: 256 MiB in float64

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
        rows = rows if len(rows) == len(self.error) else padded(rows)
        held = method.hold(*taken(self.problem, rows))
        error = self._evaluated(held, held, rows)
        self.owner[self.evaluation == len(self.evaluations) - 1] = len(self.attempts)
        method = held
        needy = np.flatnonzero((self.owner == len(self.attempts)) & (self.error > self.rtol))
        if factor > 1 and len(needy):
            # Filled up to a number for which the program is compiled: at the few points of a
            # beginning rows are computed sooner than another program is compiled.
            compiled = min(len(rows), at_once(held.in_pieces(1), self.problem))
            needy = padded(needy, compiled)
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
                method, needy = method.enlarged(factor), padded(needy)
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
        return some(held, position[chosen])

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
        while factor * row * len(padded(needy)) > self.left:
            if factor > STEP:
                factor //= STEP
            elif len(needy) > 1:
                needy = needy[: len(padded(needy)) // 2]
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
        problem = taken(self.problem, rows)
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


# --- Rows in batches ------------------------------------------------------------------------------


def flattened(problem: Problem) -> Problem:
    """The problem with its leading axes as one; an input shared by all rows stays shared."""
    return Problem(*(_flat(part, problem.batch_shape) for part in problem))


def taken(problem: Problem, rows: np.ndarray) -> Problem:
    return Problem(*(some(part, rows) for part in problem))


def some(part: Any, rows: np.ndarray) -> Any:
    """Some rows of an input with one leading axis; the input itself if all rows share it."""
    shared = part.ndim == 1 if isinstance(part, ARRAYS) else part.batch_shape == ()
    return part if shared else jax.tree.map(lambda leaf: leaf[rows], part)


def _flat(part: Any, batch_shape: tuple[int, ...]) -> Any:
    whole = LocRows(part) if isinstance(part, ARRAYS) else part
    if whole.batch_shape == ():
        return part
    flat = lambda leaf: leaf.reshape((-1, *leaf.shape[len(batch_shape) :]))
    whole = jax.tree.map(flat, whole.broadcast_to(batch_shape))
    return whole.loc if isinstance(whole, LocRows) else whole


def padded(rows: np.ndarray, compiled: int = 0) -> np.ndarray:
    """Row numbers, the first repeated up to a number for which a program is compiled, or, of more
    rows, up to a power of two, so that few shapes are compiled."""
    size = compiled if len(rows) <= compiled else 2 ** math.ceil(math.log2(len(rows)))
    return np.concatenate([rows, np.full(size - len(rows), rows[0])])


def in_batches(
    function: Callable[[Method, Problem, Array], Any], method: Method, problem: Problem, key: Array
) -> Any:
    """The results of `function(method, problem, key)`, in batches of rows of bounded memory.

    Rows that are spread over devices, or under a trace, are one batch.
    """
    batch_shape = common_shape(problem.batch_shape, method.batch_shape)
    num_rows, width = math.prod(batch_shape), at_once(method, problem)
    if (
        num_rows <= width
        or not is_concrete((method, problem))
        or any(map(parallel.is_spread, jax.tree.leaves(problem)))
    ):
        return function(method, problem, key)
    flat, own = flattened(problem), _flat(method, batch_shape)
    groups, results = [], []
    for start in range(0, num_rows, width):
        # The last batch is filled up with the first rows rather than compiled for fewer.
        rows = np.arange(start, start + width) % num_rows
        chosen = rows[0] if width == 1 else rows
        result = jax.block_until_ready(function(some(own, chosen), taken(flat, chosen), key))
        results.append(jax.tree.map(lambda x: x[None], result) if width == 1 else result)
        groups.append(rows[: num_rows - start])
    return joined(results, groups, batch_shape)


def joined(results: list[Any], groups: list[np.ndarray], batch_shape: tuple[int, ...]) -> Any:
    """The results for groups of rows as one, with leading axes; the rows of each are its first."""
    back = np.argsort(np.concatenate(groups))

    def whole(*leaves: Any) -> Array:
        # Of numbers by NumPy: each small operation of JAX would be compiled.
        xp: Any = np if is_concrete(leaves) else jnp
        parts = [xp.asarray(leaf)[: len(rows)] for leaf, rows in zip(leaves, groups)]
        return jnp.asarray(xp.concatenate(parts)[back].reshape(batch_shape + leaves[0].shape[1:]))

    return jax.tree.map(whole, *results)


def at_once(method: Method, problem: Problem) -> int:
    """The number of rows of a batch, a power of two."""
    numbers = method.numbers_held(problem.covariance.dimension)
    return 2 ** max(0, int(math.log2(MOST_NUMBERS / numbers)))
