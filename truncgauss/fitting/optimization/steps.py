"""Steps of an optimiser within one compiled loop, and the state that each evaluation leaves."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from truncgauss.fitting.optimization.parameters import Coordinates
from truncgauss.fitting.optimization.termination import (
    EXHAUSTED,
    FLAT,
    NONFINITE,
    RUNNING,
    STALLED,
    STATIONARY,
)

CHUNK = 64  # evaluations whose traces one call returns; the bar and the keyboard wait that long
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

    def unchanged(_: None) -> Any:
        return state.free, state.opt_state, state.key, state.step

    running = state.status == RUNNING
    free, opt_state, key, step = jax.lax.cond(running, updated, unchanged, None)
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
        return lambda free: objective(coordinates.params(free))
    drawn = jax.random.split(key)[1]
    return lambda free: objective(coordinates.params(free), drawn)


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
