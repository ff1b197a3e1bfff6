"""The loop of an optimiser: jitted chunks of steps, a bar, and an honest end."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from truncgauss.arrays import parallel
from truncgauss.arrays.keys import checked_key
from truncgauss.arrays.progress import NEEDS_NUMBERS, bar, reported
from truncgauss.arrays.pytrees import is_concrete
from truncgauss.execution import checkpoint as checkpoints
from truncgauss.optimize.constraints import Coordinates, coordinates, covers, named_leaves
from truncgauss.optimize.fit_result import FitResult
from truncgauss.optimize.steps import (
    CHUNK,
    EXHAUSTED,
    NONFINITE,
    RUNNING,
    STALLED,
    STUCK,
    Optimizer,
    Rules,
    State,
    advance,
    gained,
    loss_function,
    searches_lines,
    settled,
    verdict,
)

if TYPE_CHECKING:
    from truncgauss.diagnosis.nonfinite import Report

PROBES = (1e-3, 1e-2, 1e-1)  # of the largest parameter or 1: steps downhill from a minimum
FAR_PROBES = (1e1, 1e3, 1e6)  # likewise, from where the steps were used up
FEW_PARAMETERS, FLAT_STEP = 20, 0.01  # of which flat directions are sought, and by what step
NUM_GRADIENTS, CLEAR = 16, 5.0  # of a random objective, and standard errors beyond its noise
EVERYWHERE = "every direction"
STOPPED_SHORT = (
    "Stalled after {} steps: the loss still falls downhill, but the steps of the optimiser led to "
    "a higher one, or to one that is no number; the relative gradient is {:.1e}. Bound the "
    "parameters by constraints=, such as tg.fitting.Positive(), or give another optimizer=."
)
ENDLESS = (
    "Not converged: after {} steps the loss has fallen from {:.4g} to {:.4g}, and still falls at "
    "a distance of {:.2g} downhill: it seems to decrease without end. Check its sign, as of a "
    "log-likelihood, which is maximised, or bound the parameters by constraints=."
)
PATIENCE = {True: 5, False: 200}  # steps without a lower loss, with a line search and without


@reported
def minimize(
    objective: Callable[..., jax.Array],
    start: Any,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 1000,
    key: jax.Array | None = None,
    progress: bool = True,
    *,
    constraints: Any = None,
    tolerance: float | None = None,
) -> FitResult:
    """The parameters that minimise an objective, by any optax optimiser.

    It has converged when the relative gradient

        max_i |g_i| max(|x_i|, 1) / max(|f|, 1) <= tolerance

    in free coordinates x, or when the loss no longer decreases in this precision while the relative
    gradient is below sqrt(tolerance). An objective of a key is random, so neither can be seen; it
    has converged when the mean loss of the last quarter of the steps is that of the quarter before
    within two standard errors.

    Within `fitting.resumable(file)` its state is kept in a file, from which the same call goes on,
    bitwise, after an interruption, or to more steps.

    Args:
        objective: params -> loss, a real number; or (params, key) -> loss if a key is given. A
            pytree that can be called, such as `jax.tree_util.Partial(function, data)`, is compiled
            once for all data of equal shape; a plain function once for each function.
        start: parameters to begin with, any pytree of real numbers.
        optimizer: any optax optimiser. By default `optax.lbfgs()`, and for an objective of a key
            `optax.adam` on a cosine schedule from 0.05 to 0 over the steps.
        num_steps: how many updates to make at most.
        key: a JAX random key, for an objective of a key; each step gets its own.
        progress: say on standard error what goes on, such as compiling, or the loss and its
            gradient, if the fit takes more than a second: in one line on a terminal, else in few.
            The numbers are the same without.
        constraints: {path: constraint}, or one for everything; see `fitting.coordinates`.
        tolerance: of the relative gradient; by default eps ** 0.6, which is 4e-10 in float64 and
            7e-5 in float32.

    Returns:
        FitResult. If a loss or gradient is not finite the fit stops, keeps the last good
        parameters, says `converged=False` and names the step, the parameter and the primitive.

    Raises:
        ValueError: for a start or constraint that makes no sense, an objective that is no number,
            or the file of another fit.

    Example:
        >>> centre = jnp.array([1.0, -2.0])
        >>> result = tg.minimize(lambda x: jnp.sum((x - centre) ** 2), jnp.zeros(2))
        >>> result.params, result.converged
        (Array([ 1., -2.], dtype=float64), True)
    """
    if isinstance(num_steps, bool) or not hasattr(num_steps, "__index__") or num_steps < 0:
        raise ValueError(f"minimize: num_steps must be an int from 0 on, got {num_steps!r}.")
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"minimize: tolerance must not be negative, got {tolerance}.")
    key = None if key is None else checked_key(key)
    if not callable(objective):
        raise ValueError(
            f"minimize: objective must be a function of the parameters, got {objective!r}."
        )
    if jax.tree_util.all_leaves([objective]):  # a function is a tree without leaves
        objective = jax.tree_util.Partial(objective)
    if isinstance(start, optax.GradientTransformation):
        raise ValueError(
            "minimize: the order is (objective, start, optimizer): they are exchanged."
        )
    free_coordinates = coordinates(start, constraints)
    parallel.agreed("minimize: the start and the objective", (free_coordinates, objective, key))
    check_objective(objective, free_coordinates, key)
    if optimizer is None:
        optimizer = default_optimizer(None if key is None else num_steps)
    if not hasattr(optimizer, "update"):
        raise ValueError(
            "minimize: optimizer must be an optimiser of optax, such as optax.adam(1e-2), got "
            f"{optimizer!r}."
        )
    optimizer = optax.with_extra_args_support(optimizer)
    state = first_state(free_coordinates, optimizer, key)
    dtype = state.best.dtype
    tolerance = float(jnp.finfo(dtype).eps) ** 0.6 if tolerance is None else tolerance
    patience = PATIENCE[searches_lines(state.opt_state)] if key is None else num_steps + 1
    rules = Rules(
        num_steps=jnp.asarray(num_steps, jnp.int32),
        tolerance=jnp.asarray(tolerance if key is None else -1.0, dtype),
        patience=jnp.asarray(patience, jnp.int32),
    )
    run = Minimization(objective, free_coordinates, optimizer, rules, key)
    nothing = np.zeros(0, dtype)
    return run.result(run.through(Progress(state, Traces(nothing, nothing)), progress), tolerance)


def check_objective(objective: Any, coordinates: Coordinates, key: Any) -> None:
    """Raise an error unless JAX can trace the objective, and its value is one real number."""
    function = loss_function(objective, coordinates, key)
    try:
        result: Any = jax.eval_shape(function, coordinates.free(coordinates.start))
    except NEEDS_NUMBERS as error:
        from truncgauss.arrays.closures import closes_over_traced

        if closes_over_traced(objective) or not is_concrete(coordinates.start):
            raise
        raise TypeError(
            "minimize: the objective cannot be traced by JAX. Write it with jax.numpy instead of "
            "numpy, without float, int or .item(), and with jnp.where instead of `if`."
        ) from error
    shape: Any = getattr(result, "shape", None)
    kind: Any = getattr(result, "dtype", None)
    if shape != () or not jnp.issubdtype(kind, jnp.floating):
        got = type(result).__name__ if shape is None else f"{kind} of shape {shape}"
        fields = getattr(result, "_fields", ())  # such as of an Estimate
        cure = f"Return one of its fields, .{fields[0]}." if fields else "Sum or average it."
        raise ValueError(f"minimize: the objective must return one real number, got {got}. {cure}")


class Traces(NamedTuple):
    """The loss and the norm of its gradient at every evaluation."""

    loss: np.ndarray
    gradient_norm: np.ndarray


class Progress(NamedTuple):
    """A state and the traces that led to it: what a checkpoint holds."""

    state: State
    traces: Traces


@dataclasses.dataclass(frozen=True)
class Minimization:
    """One fit: what is fixed while its state moves."""

    objective: Callable[..., jax.Array]
    coordinates: Coordinates
    optimizer: Optimizer
    rules: Rules
    key: Any

    def through(self, done: Progress, progress: bool) -> Progress:
        """The end of the fit, from its start or its checkpoint."""
        num_steps = int(self.rules.num_steps)
        fingerprint = checkpoints.fingerprint(  # which tell this fit from others
            start=self.coordinates.start,
            constraints=self.coordinates.constraints,
            objective=self.objective,
            code=checkpoints.source_digest(self.objective),
            key=self.key,
        )
        with checkpoints.Checkpoint(done, fingerprint, "fit") as stored:
            state, traces = stored.state
            if int(state.status) == EXHAUSTED and int(state.step) < num_steps:
                # More steps are allowed now: its last evaluation is made again, with an update.
                state = state._replace(status=jnp.zeros((), jnp.int32))
                stored.state = Progress(state, Traces(*(trace[:-1] for trace in traces)))
            size, first = 1, int(state.step)
            with bar(None, "steps", progress, num_steps, first) as shown:
                while int(stored.state.state.status) == RUNNING:
                    began = time.monotonic()
                    stored.update(self.advanced(stored.state, size))
                    # Processes that share the work must take the same number of steps.
                    quick = time.monotonic() - began < 0.2 or jax.process_count() > 1
                    # As long as the eye and the keyboard can wait; a step is the same in any chunk.
                    size = min(2 * size, CHUNK) if quick else max(size // 2, 1)
                    loss, norm = (trace[-1] for trace in stored.state.traces)
                    shown.count = int(stored.state.state.step)
                    shown.note = f"loss {loss:.6g}, gradient {norm:.1e}"
        return stored.state

    def advanced(self, done: Progress, size: int) -> Progress:
        state, fresh, count = advance(
            self.objective, self.coordinates, done.state, self.rules, size, self.optimizer
        )
        fresh = np.asarray(fresh)[:, : int(count)]
        return Progress(state, Traces(*map(np.append, done.traces, fresh)))

    def result(self, done: Progress, tolerance: float) -> FitResult:
        """The end of the fit with the sentence that explains it."""
        state, (losses, norms) = done.state, done.traces
        diagnosis = None
        if int(state.status) == NONFINITE:
            from truncgauss.diagnosis.nonfinite import first_nonfinite  # where a fit failed

            loss_at = loss_function(self.objective, self.coordinates, state.key)
            diagnosis = first_nonfinite(loss_at, state.free)
            converged, reason = False, self.accusation(loss_at, state, losses[-1], diagnosis)
        elif state.key is not None:
            converged, reason = settled(losses)
            if converged and not gained(losses) and self.pulled(state):
                converged, reason = False, STUCK
        else:
            relative = float(state.relative_gradient)
            converged, reason = verdict(int(state.status), int(state.step), relative, tolerance)
            if converged and (far := self.still_falling(state)):
                converged = False
                reason = (
                    f"Not converged after {int(state.step)} steps: the relative gradient is "
                    f"{relative:.1e}, but the loss still falls at a distance of {far:.2g} along "
                    "it. This is a plateau, or the way to a minimum at infinity: start elsewhere."
                )
            elif int(state.status) == EXHAUSTED and (far := self.still_falling(state, FAR_PROBES)):
                reason = ENDLESS.format(int(state.step), losses[0], losses[-1], far)
            elif int(state.status) == STALLED and not converged and self.still_falling(state):
                reason = STOPPED_SHORT.format(int(state.step), relative)
            elif converged and (direction := self.flat(state)):
                if direction == EVERYWHERE:
                    converged = False
                    reason = (
                        f"Not converged after {int(state.step)} steps: around the end the loss "
                        "does not change in any direction. This is a plateau: start elsewhere."
                    )
                else:
                    reason += (
                        f" The loss does not change along {direction}: what moves so is not "
                        "determined."
                    )
        return FitResult(
            params=self.coordinates.params(state.good),
            loss=float(state.loss if int(state.step) else losses[-1]),
            gradient_norm=float(state.gradient_norm if int(state.step) else norms[-1]),
            loss_trace=losses,
            gradient_norm_trace=norms,
            num_steps=int(state.step),
            converged=converged,
            reason=reason,
            diagnosis=diagnosis,
        )

    def still_falling(self, state: State, probes: tuple[float, ...] = PROBES) -> float:
        """Distance downhill from the end to which the loss falls at every probe; 0 if it does not.

        On a plateau the gradient is as small as at a minimum, but a step along it, of any length,
        leads further down.
        """
        if float(state.gradient_norm) == 0.0:
            return 0.0
        size = max([1.0, *(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(state.good))])
        lowest = float(state.loss)
        for part in probes:
            # By the program of the loop, along minus the gradient.
            step = -part * size / state.gradient_norm
            free = jax.tree.map(
                lambda x, g, step=step: x + (step * g).astype(x.dtype), state.good, state.gradient
            )
            opt_state = jax.tree.map(strong, self.optimizer.init(free))
            probe = state._replace(free=free, opt_state=opt_state)
            loss = float(self.evaluated_once(probe)[1][0, 0])
            if not loss < lowest - 4.0 * float(jnp.finfo(state.best.dtype).eps) * abs(lowest):
                return 0.0
            lowest = loss
        return probes[-1] * size

    def flat(self, state: State) -> str:
        """The direction in free coordinates along which the loss is constant, in words; EVERYWHERE
        if it is in all of them, empty if there is none, or there are many parameters.

        The Hessian is by differences of gradients, from the program of the loop. Coordinates that
        no parameter depends on, such as that of an infinite end, are no directions.
        """
        flat, tree = ravel_pytree(state.good)
        q, eps = len(flat), float(jnp.finfo(flat.dtype).eps)
        if not 1 <= q <= FEW_PARAMETERS:
            return ""
        x = np.asarray(flat)
        scale = np.maximum(np.abs(x), 1.0)

        def at(move: np.ndarray) -> tuple[float, np.ndarray]:
            free = tree(jnp.asarray(x + scale * move, x.dtype))
            fresh = state._replace(
                free=free, opt_state=jax.tree.map(strong, self.optimizer.init(free))
            )
            end, values = self.evaluated_once(fresh)
            good = int(end.status) != NONFINITE
            gradient = scale * np.asarray(ravel_pytree(end.gradient)[0])
            return (float(values[0, 0]) if good else math.nan), gradient

        step = eps ** (1 / 3)
        sides = [at(sign * step * unit)[1] for unit in np.eye(q) for sign in (1.0, -1.0)]
        hessian = np.asarray([up - down for up, down in zip(sides[::2], sides[1::2])]) / (2 * step)
        if not np.all(np.isfinite(hessian)):
            return ""

        def ends(move: np.ndarray) -> np.ndarray:
            return np.asarray(ravel_pytree(self.coordinates.params(tree(jnp.asarray(x + move))))[0])

        moving = [
            k
            for k, unit in enumerate(np.eye(q, dtype=x.dtype))
            if np.any(hessian[k]) or not np.array_equal(ends(unit), ends(0.0 * unit))
        ]
        if not moving:
            return ""
        curvatures, directions = np.linalg.eigh((hessian + hessian.T)[np.ix_(moving, moving)] / 2.0)
        loss, bend = float(state.loss), 0.5 * abs(curvatures[-1]) * FLAT_STEP**2
        if bend < eps**1.5 * abs(loss):  # by gradients: rounding hides less of them
            around = [at(sign * FLAT_STEP * unit)[0] for unit in np.eye(q) for sign in (1, -1)]
            gap = max(abs(each - loss) for each in around)
            return EVERYWHERE if gap < 4.0 * eps * abs(loss) else ""
        move, rounding = np.zeros(q), 8.0 * eps * max(abs(loss), 1.0)
        move[moving] = directions[:, 0]
        change = max(abs(at(sign * FLAT_STEP * move)[0] - loss) for sign in (1, -1))
        if not (abs(curvatures[0]) < eps**0.5 * curvatures[-1] and change < 1e-4 * bend + rounding):
            return ""
        names = [
            f"{path.rstrip('/') or 'x'}{list(index) if index else ''}"
            for path, leaf in named_leaves(state.good)
            for index in np.ndindex(leaf.shape)
        ]
        parts = scale * move / max(scale * move, key=abs)
        shown = np.flatnonzero(np.abs(parts) > 1e-3)
        return " ".join(f"{parts[k]:+.3g} {names[k]}" for k in shown)

    def evaluated_once(self, state: State) -> tuple[State, jax.Array]:
        """The state after one evaluation without a step, and its traces."""
        rules = self.rules._replace(num_steps=jnp.zeros_like(self.rules.num_steps))
        state = state._replace(step=jnp.ones_like(state.step), status=jnp.zeros_like(state.status))
        return advance(self.objective, self.coordinates, state, rules, 1, self.optimizer)[:2]

    def pulled(self, state: State) -> bool:
        """Whether the mean gradient of a random objective at the end is more than its noise, and no
        smaller than half of that at the start."""
        start = self.coordinates.free(self.coordinates.start)
        (end, noise), (first, _) = (self.mean_gradient(state, x) for x in (state.good, start))
        clear = bool(np.any(np.abs(end) > CLEAR * noise))
        return clear and float(np.linalg.norm(end)) > 0.5 * float(np.linalg.norm(first))

    def mean_gradient(self, state: State, free: Any) -> tuple[np.ndarray, np.ndarray]:
        """The mean of gradients with other keys, flattened, and its standard error."""
        keys = jax.random.split(jax.random.fold_in(state.key, 1), NUM_GRADIENTS)
        rows = [
            ravel_pytree(self.evaluated_once(state._replace(free=free, key=key))[0].gradient)[0]
            for key in keys
        ]
        table = np.asarray(rows)
        return table.mean(axis=0), table.std(axis=0, ddof=1) / NUM_GRADIENTS**0.5

    def accusation(self, loss_at: Any, state: State, loss: float, diagnosis: "Report") -> str:
        """Why a fit ended in a number that is none: the step, the parameters, the primitive.

        Guilty is a parameter that alone, put back to where all was finite, mends it; or else those
        whose gradient is not finite.
        """
        evaluate = jax.jit(jax.value_and_grad(loss_at))
        gradient = evaluate(state.free)[1]
        suspects = list(state.free) if int(state.step) else []
        guilty = [
            name
            for name in suspects
            if all_finite(evaluate({**state.free, name: state.good[name]}))
        ] or [name for name, part in gradient.items() if not all_finite(part)]
        params = dict(named_leaves(self.coordinates.params(state.free)))
        named = " and ".join(
            f"{path or 'the parameters'} = "
            + np.array2string(np.asarray(leaf), threshold=8).removesuffix(".")
            for path, leaf in params.items()
            if any(covers(name, path) for name in guilty)
        )
        what = "gradient is not finite" if math.isfinite(loss) else f"loss is {loss}"
        return (
            f"Stopped at step {int(state.step)}: the {what}{' at ' if named else ''}{named}. The "
            f"last good parameters are kept. {diagnosis}"
        )


def all_finite(tree: Any) -> bool:
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


def first_state(coordinates: Coordinates, optimizer: Optimizer, key: Any) -> State:
    """The state before the first evaluation; strong types, so that no later call retraces."""
    free = coordinates.free(coordinates.start)
    if not jax.tree.leaves(free):
        raise ValueError("minimize: every parameter is frozen, so there is nothing to fit.")
    dtype = jnp.result_type(*jax.tree.leaves(free))
    unknown, zero = jnp.full((), jnp.inf, dtype), jnp.zeros((), jnp.int32)
    state = State(
        free=free,
        good=free,
        opt_state=optimizer.init(free),
        key=key,
        step=zero,
        best=unknown,
        idle=zero,
        status=zero,
        loss=unknown,
        gradient=jax.tree.map(jnp.zeros_like, free),
        gradient_norm=unknown,
        relative_gradient=unknown,
    )
    return jax.tree.map(strong, state)


def strong(leaf: Any) -> jax.Array:
    return leaf if checkpoints.is_key(leaf) else jnp.asarray(leaf, dtype=jnp.result_type(leaf))


@functools.lru_cache
def default_optimizer(num_random_steps: int | None) -> optax.GradientTransformation:
    """L-BFGS; for a random objective, whose line search would chase noise, Adam slowing down."""
    if num_random_steps is None:
        return optax.lbfgs()
    return optax.adam(optax.cosine_decay_schedule(0.05, max(num_random_steps, 1)))
