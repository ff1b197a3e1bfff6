"""Steps of an optimiser within one compiled loop, the state that each evaluation leaves, and the
sentence for each end of a fit."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truncgauss.optimize.constraints import Coordinates

CHUNK = 64  # evaluations whose traces one call returns; the bar and the keyboard wait that long
LEAST = 8  # losses in a quarter of a random fit, from which a trend can be seen
STUCK = (
    "Not converged: nothing was gained, as far as the noise can tell, and the mean gradient is no "
    "smaller than at the start. Take larger steps, or more of them."
)
RUNNING, STATIONARY, STALLED, NONFINITE, FLAT, EXHAUSTED = range(6)
Optimizer: TypeAlias = optax.GradientTransformationExtraArgs


class State(NamedTuple):
    """The state of a fit between two evaluations."""

    free: Any  # where the objective is evaluated next
    good: Any  # where it was last finite
    opt_state: Any
    key: Any
    step: jax.Array
    best: jax.Array  # the lowest loss so far
    idle: jax.Array  # steps since
    status: jax.Array
    loss: jax.Array  # at `good`, as the two below
    gradient: Any
    gradient_norm: jax.Array
    relative_gradient: jax.Array


class Rules(NamedTuple):
    """Conditions to stop."""

    num_steps: jax.Array
    tolerance: jax.Array
    patience: jax.Array


Carry = tuple[State, jax.Array, jax.Array]  # of the loop: traces so far, and their number


@functools.partial(jax.jit, static_argnames="optimizer")
def advance(
    objective: Callable[..., jax.Array],
    coordinates: Coordinates,
    state: State,
    rules: Rules,
    size: int,
    optimizer: Optimizer,
) -> tuple[State, jax.Array, jax.Array]:
    """The state after at most `size` evaluations, their losses and gradient norms, their count."""
    trace = jnp.zeros((2, CHUNK), state.best.dtype)

    def more(carry: Carry) -> jax.Array:
        return (carry[0].status == RUNNING) & (carry[2] < size)

    def one(carry: Carry) -> Carry:
        state, trace, count = carry
        state, values = evaluated(objective, coordinates, state, rules, optimizer)
        return state, trace.at[:, count].set(values), count + 1

    return jax.lax.while_loop(more, one, (state, trace, jnp.zeros((), jnp.int32)))


def evaluated(
    objective: Callable[..., jax.Array],
    coordinates: Coordinates,
    state: State,
    rules: Rules,
    optimizer: Optimizer,
) -> tuple[State, jax.Array]:
    """The state after one evaluation, and the update if that did not end the fit."""
    function = loss_function(objective, coordinates, state.key)
    if searches_lines(state.opt_state):
        evaluate = optax.value_and_grad_from_state(function)
        loss, gradient = evaluate(state.free, state=state.opt_state)
    else:
        loss, gradient = jax.value_and_grad(function)(state.free)
    state, values = judged(state, loss, gradient, rules)

    def updated(_: None) -> Any:
        updates, opt_state = optimizer.update(
            gradient, state.opt_state, state.free, value=loss, grad=gradient, value_fn=function
        )
        key = None if state.key is None else jax.random.split(state.key)[0]
        return optax.apply_updates(state.free, updates), opt_state, key, state.step + 1

    running = state.status == RUNNING
    unchanged = state.free, state.opt_state, state.key, state.step
    free, opt_state, key, step = jax.lax.cond(running, updated, lambda _: unchanged, None)
    return state._replace(free=free, opt_state=opt_state, key=key, step=step), values


def judged(state: State, loss: jax.Array, gradient: Any, rules: Rules) -> tuple[State, jax.Array]:
    """The state with its status after an evaluation, and the loss and gradient norm there."""
    dtype = state.best.dtype
    loss, norm = loss.astype(dtype), optax.tree.norm(gradient).astype(dtype)
    relative = relative_gradient(state.free, gradient, loss).astype(dtype)
    improved = loss < state.best - jnp.finfo(dtype).eps * jnp.abs(state.best)
    improved = improved | jnp.isinf(state.best)
    idle = jnp.where(improved, 0, state.idle + 1)
    status = jnp.select(
        [
            ~(jnp.isfinite(loss) & jnp.isfinite(norm)),
            (norm == 0) & (state.step == 0) & (rules.tolerance >= 0),
            relative <= rules.tolerance,
            idle >= rules.patience,
            state.step >= rules.num_steps,
        ],
        [NONFINITE, FLAT, STATIONARY, STALLED, EXHAUSTED],
        RUNNING,
    ).astype(jnp.int32)
    good, running = status != NONFINITE, status == RUNNING
    keep = functools.partial(jax.tree.map, lambda new, old: jnp.where(good, new, old))
    return state._replace(
        good=keep(state.free, state.good),
        # A fit that runs out of steps and is resumed makes this evaluation again.
        best=jnp.where(improved & running, loss, state.best),
        idle=jnp.where(running, idle, state.idle),
        status=status,
        loss=keep(loss, state.loss),
        gradient=keep(gradient, state.gradient),
        gradient_norm=keep(norm, state.gradient_norm),
        relative_gradient=keep(relative, state.relative_gradient),
    ), jnp.stack([loss, norm])


def loss_function(
    objective: Callable[..., jax.Array], coordinates: Coordinates, key: Any
) -> Callable[[Any], jax.Array]:
    """The objective of free coordinates, with this step's key if there is one."""
    if key is None:
        return lambda params: objective(coordinates.params(params))
    drawn = jax.random.split(key)[1]
    return lambda params: objective(coordinates.params(params), drawn)


def relative_gradient(free: Any, gradient: Any, loss: jax.Array) -> jax.Array:
    """max |g| max(|x|, 1) / max(|f|, 1): the change of log f for a relative change of x."""

    def largest(x: jax.Array, g: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(g) * jnp.maximum(jnp.abs(x), 1.0))

    parts = jax.tree.leaves(jax.tree.map(largest, free, gradient))
    return jnp.max(jnp.stack(parts)) / jnp.maximum(jnp.abs(loss), 1.0)


def searches_lines(opt_state: Any) -> bool:
    """Whether the optimiser searches along its direction and keeps the loss there."""
    kind = optax.ScaleByZoomLinesearchState
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    return any(isinstance(leaf, kind) for leaf in leaves)


# ---------------------------------------------------------------- the end, in a sentence


def verdict(status: int, step: int, relative: float, tolerance: float) -> tuple[bool, str]:
    """Whether a fit of a fixed objective converged, and why it ended."""
    gradient = f"the relative gradient is {relative:.1e}"
    small = relative <= math.sqrt(tolerance)
    if status == FLAT:
        return False, (
            "The gradient is exactly zero at the start: the objective is flat or symmetric there, "
            "or this is the solution already. Start elsewhere to tell."
        )
    if status == STATIONARY:
        return True, f"Converged after {step} steps: {gradient} (tolerance {tolerance:.1e})."
    if status == STALLED and small:
        return True, (
            f"Converged after {step} steps: the loss no longer decreases in this precision, and "
            f"{gradient}."
        )
    if status == STALLED:
        return False, (
            f"Stalled after {step} steps: the loss no longer decreases, but {gradient} (tolerance "
            f"{tolerance:.1e}). Its gradient may be a surrogate's, or have a jump: compare it with "
            "differences of the loss. Else scale the parameters, try float64 or another start."
        )
    return False, (
        f"Not converged: {step} steps are used up and {gradient} (tolerance {tolerance:.1e}). "
        "Allow more num_steps."
    )


def difference(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Fall of the mean of losses, and its standard error."""
    noise = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / len(after))
    return float(before.mean() - after.mean()), noise


def gained(losses: np.ndarray) -> bool:
    """Whether the last quarter of random losses is clearly lower than the first."""
    quarter = len(losses) // 4
    gap, noise = difference(losses[:quarter], losses[-quarter:])
    return gap > 2 * noise


def settled(losses: np.ndarray) -> tuple[bool, str]:
    """Whether the loss of a random objective has stopped falling, as far as its noise can tell."""
    quarter = len(losses) // 4
    if quarter < LEAST:
        few = f"Not converged: {len(losses)} losses are too few to be told from their noise."
        return False, few
    before, after = losses[-2 * quarter : -quarter], losses[-quarter:]
    gap, noise = difference(before, after)
    numbers = f"the mean loss of the last quarter is lower by {gap:.2g} +- {noise:.1g}"
    if abs(gap) <= 2 * noise:
        return True, f"Settled after {len(losses) - 1} steps: {numbers}."
    return False, f"Not converged: {numbers}. Allow more num_steps."
