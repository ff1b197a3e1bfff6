"""The primitive that produced a NaN in a function's value or gradient.

`jax_debug_nans` stops at the first NaN of an eager program, also at one that a `where` discards,
and under `jit` it sees outputs only. Here a function and its reverse-mode gradient are traced to
primitives, which are evaluated one at a time on a tape. From a NaN in a result the tape is followed
back to the primitive that produced a NaN from numbers, and from there to the one that produced the
infinity among its operands.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.progress import reported
from truncgauss.diagnosis import tape as tapes
from truncgauss.diagnosis.tape import Cell, Index, Node, Tape, Test

__all__ = ["Report", "first_nonfinite"]

Way = list[tuple[Node, Index]]
Kind = Literal["nan", "input", "infinite", "masked", "finite"]
Where = Literal["value", "gradient"]

_UNDERFLOWN = (
    "a normal probability is 0 in this precision: take its logarithm at once, by "
    "tg.special.log_ndtr, or log_interval_mass of an interval"
)
_ROOT_AT_ZERO = (
    "the slope of a root is infinite at 0: tg.safe.safe_norm for a norm, else the double "
    "where (replace the argument before the root, select after it)"
)
_CLIPPING = (
    "tg.safe.clipped_gradient(x, bound) on what this line takes in bounds the gradient there"
)
_ROOTS = frozenset("sqrt rsqrt cbrt pow".split())
_DOMAINS = frozenset("log log1p sqrt rsqrt pow erf_inv acos asin atanh acosh".split())


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of `first_nonfinite`; `str(report)` is a text for the user.

    Attributes:
        kind: `"nan"`: a NaN was produced and reaches a result. `"input"`: it came in with an
            argument or a captured constant. `"infinite"`: no NaN, but a result holds an infinity.
            `"masked"`: a NaN was produced, and none reaches a result. `"finite"`: none of these.
        where: `"value"` or `"gradient"`: which result is affected (masked: during which evaluation
            the NaN was produced). For `"finite"` always `"gradient"`.
        primitive: the primitive that produced the NaN (or the infinity; or, where all is finite,
            the one that amplifies the gradient most); None for `"input"`.
        operands: its operands at that element, or a description of a whole array; for `"finite"`
            the largest cotangent that went in and the largest that came out.
        index: that element's position in the result of the primitive.
        source: `"file:line in function"` of the user's code.
        fed_by: the primitive (or the argument) that produced the infinity among the operands.
        chain: primitives from the input to this one, in order of evaluation.
        message: the finding, in one sentence.
        details: further lines of the text.
        suggestion: the usual remedy, where the pattern is known.
        amplification: largest cotangent out over largest cotangent in; `"finite"` only.
    """

    kind: Kind
    where: Where
    primitive: str | None
    operands: tuple[Any, ...]
    index: Index | None
    source: str | None
    fed_by: str | None
    chain: tuple[str, ...]
    message: str
    details: tuple[str, ...] = ()
    suggestion: str | None = None
    amplification: float | None = None

    @property
    def failed(self) -> bool:
        """Whether a NaN reaches the value or the gradient."""
        return self.kind in ("nan", "input")

    def __str__(self) -> str:
        advice = [f"try      {self.suggestion}"] if self.suggestion else []
        return "\n  ".join([self.message, *self.details, *advice])


@reported
def first_nonfinite(fun: Callable[..., Any], *args: Any, has_aux: bool = False) -> Report:
    r"""A report on the primitive that produced the first NaN of a function or of its gradient.

    The function is traced once, and its vector-Jacobian product with ones, $\nabla_x \sum_i f_i$,
    once more; both are then evaluated primitive by primitive, also inside `jit`, custom rules,
    `checkpoint`, `scan`, `while_loop`, `cond` and `custom_linear_solve`. Other calls
    (`shard_map`, kernels) are evaluated whole, and the report says so. This is eager, hundreds of
    times slower than the compiled function, and keeps every array that is not finite: it is meant
    for debugging.

    An infinity alone is no failure (log 0 is a legal value of a branch that is not taken), but one
    that is returned is reported. A NaN that a `where` discards is distinguished from one that
    reaches a result.

    Args:
        fun: function of pytrees, traceable by `jax.jit`, returning a pytree.
        *args: its arguments. Floating-point leaves are differentiated; integers, keys and all
            else are held as they are.
        has_aux: as in `jax.grad`: `fun` returns `(result, aux)` and only `result` is
            differentiated.

    Returns:
        A `Report`.

    Raises:
        TypeError: where `fun` is no function.
        ValueError: where `fun` returns nothing of floating-point type.

    Example:
        >>> report = tg.first_nonfinite(lambda x: 1 / (1 + jnp.exp(-x)), -1000.0)
        >>> report.where, report.primitive, report.operands, report.fed_by
        ('gradient', 'mul', (-0.0, inf), 'exp')
    """
    if not callable(fun):
        raise TypeError(
            "first_nonfinite: expected a function and its arguments, such as "
            f"first_nonfinite(fun, x), got {type(fun).__name__}; do not call it."
        )
    problem = _FlatFunction(fun, args, has_aux)
    value, gradient = Tape(), Tape()
    with tapes.evaluation_as_written():
        outs = value.run(problem.value_jaxpr, [value.leaf(*x) for x in problem.inputs()])
    results = list(zip(outs, problem.outputs, strict=True))
    slopes: list[tuple[Cell, str]] = []
    report = _verdict("value", results, np.isnan)
    if report is None and problem.leaves and problem.num_main:
        jaxpr, seeds = problem.gradient_jaxpr()
        with tapes.evaluation_as_written():
            cells = [gradient.leaf(*x) for x in problem.inputs()]
            cells += [gradient.leaf(seed, "the seed", backward=True) for seed in seeds]
            outs = gradient.run(jaxpr, cells)
        # A custom rule may compute the value anew, in another way.
        again = list(zip(outs[: len(seeds)], problem.outputs[: len(seeds)], strict=True))
        slopes = list(zip(outs[len(seeds) :], problem.slopes(), strict=True))
        report = _verdict("value", again, np.isnan) or _verdict("gradient", slopes, np.isnan)
    return (
        report
        or _verdict("value", results, np.isinf)
        or _verdict("gradient", slopes, np.isinf)
        or _masked(value, gradient)
        or _amplifier(gradient, slopes)
    )


class _FlatFunction:
    """The function as one of flat arrays: floating-point leaves in, floating-point leaves out."""

    def __init__(self, fun: Callable[..., Any], args: tuple[Any, ...], has_aux: bool) -> None:
        flattened, tree = jax.tree_util.tree_flatten_with_path(args)
        moving = [i for i, (_, leaf) in enumerate(flattened) if _is_inexact(leaf)]
        arguments = _argument_names(fun, len(args))
        self.leaves = [flattened[i][1] for i in moving]
        self.names = []
        for i in moving:
            first, *inner = flattened[i][0]
            keys = tuple(key for key in inner if getattr(key, "key", None) != "")
            self.names.append(f"`{arguments[first.idx]}{jax.tree_util.keystr(keys)}`")
        self.outputs: list[str] = []
        self.num_main = 0

        def flat(*leaves: Any) -> tuple[list[Any], list[Any]]:
            filled = [leaf for _, leaf in flattened]
            for i, leaf in zip(moving, leaves, strict=True):
                filled[i] = leaf
            out = fun(*jax.tree_util.tree_unflatten(tree, filled))
            main, aux = out if has_aux else (out, ())
            main, aux = _inexact_leaves(main, "the output"), _inexact_leaves(aux, "the aux output")
            self.outputs = [name for name, _ in main + aux]
            self.num_main = len(main)
            return [leaf for _, leaf in main], [leaf for _, leaf in aux]

        self._flat = flat
        try:
            self.value_jaxpr = jax.make_jaxpr(flat)(*self.leaves)
        except ZeroDivisionError as error:
            error.add_note(
                "first_nonfinite holds integers as they are, and Python refuses to divide by 0: "
                "write 0.0 for an argument that is differentiated."
            )
            raise
        if not self.outputs:
            raise ValueError(
                "first_nonfinite got a function that returns no floating-point array; "
                "expected at least one, since only those can hold a NaN"
            )

    def inputs(self) -> list[tuple[jax.Array, str]]:
        """The arguments' leaves in the precision that tracing gave them."""
        avals: list[Any] = [v.aval for v in self.value_jaxpr.invars]
        arrays = [jnp.asarray(x, a.dtype) for x, a in zip(self.leaves, avals, strict=True)]
        return list(zip(arrays, self.names, strict=True))

    def slopes(self) -> list[str]:
        return [f"the gradient with respect to {name}" for name in self.names]

    def gradient_jaxpr(self) -> tuple[Any, list[jax.Array]]:
        avals: list[Any] = [v.aval for v in self.value_jaxpr.outvars[: self.num_main]]
        seeds = [jnp.ones(a.shape, a.dtype) for a in avals]

        def pulled(leaves: Any, seeds: Any) -> tuple[Any, Any]:
            out, pull = jax.vjp(lambda *x: self._flat(*x)[0], *leaves)
            return out, pull(list(seeds))

        return jax.make_jaxpr(pulled)(self.leaves, seeds), seeds


def _verdict(where: Where, results: list[tuple[Cell, str]], test: Test) -> Report | None:
    """A report on the first result with an element that passes the test."""
    for cell, name in results:
        index = cell.node.first(test)
        if index is not None:
            way = tapes.way_back(cell.node, index, test)
            return _report(where, way, test, f"in {name}{_at(index)}")
    return None


def _masked(*trails: Tape) -> Report | None:
    """A report on the first NaN that was produced and reached no result."""
    both: tuple[Where, Where] = ("value", "gradient")
    for where, trail in zip(both, trails, strict=True):
        for node in trail.nodes:
            index = node.first(np.isnan)
            if index is not None and (node.name or node.label):
                way = tapes.way_back(node, index, np.isnan)
                if way[-1][0].name or way[-1][0].label:  # not a NaN written into the program
                    arrival = "that is masked and reaches no result"
                    return _report(where, way, np.isnan, arrival, masked=True)
    return None


def _report(where: Where, way: Way, test: Test, arrival: str, masked: bool = False) -> Report:
    """A report on the last element of a way back, where the NaN or infinity was produced."""
    node, index = way[-1]
    what = "NaN" if test is np.isnan else "infinity"
    # From a NaN back to the origin of an infinity among its operands, if there is one.
    step = tapes.step_back(node, index, np.isinf) if what == "NaN" and node.name else None
    feed = tapes.way_back(*step, np.isinf) if step else []
    operands = _operands(node, index)
    chain = _names(tapes.descent((feed or way)[-1][0]) + [n for n, _ in feed[-2::-1]])
    chain += _names([node]) if feed else ()
    details = []
    if not node.name:
        message = f"{what} {arrival}: it came in with {_origin_name(node)}{_at(index)}"
    else:
        message = f"{what} {arrival}, born in `{node.name}` of {_listed(operands)}"
        details.append(f"born at  {node.source}{_context(node, index)}")
        backward = "the backward pass" if node.backward else None
        other = backward or "a derivative rule, or a branch not taken"
        details.append(f"born in  {'the value' if where == 'value' else other}")
    if feed:
        maker, at = feed[-1]
        if not maker.name or maker.value is None:
            made = f"{_origin_name(maker)}{_at(at)}"
        else:
            made = f"`{maker.name}` of {_listed(_operands(maker, at))}"
            made += f", which gave {maker.value[at]} at {maker.source}"
        details.append(f"fed by   {made}")
    carried = _names([n for n, _ in way[-2::-1]])
    details += [f"chain    {_arrows(chain)}"] if chain else []
    details += [f"then     {_arrows(carried)}"] if carried else []
    if not node.entered:
        details.append(f"note     `{node.name}` was evaluated whole: the birth is inside it")
    kind: Kind = "infinite" if what != "NaN" else "nan" if node.name else "input"
    return Report(
        kind="masked" if masked else kind,
        where=where,
        primitive=node.name or None,
        operands=operands,
        index=index,
        source=node.source if node.name else None,
        fed_by=(feed[-1][0].name or _origin_name(feed[-1][0])) if feed else None,
        chain=chain,
        message=message,
        details=tuple(details),
        suggestion=_suggestion(where, node, operands, feed),
    )


def _amplifier(trail: Tape, slopes: list[tuple[Cell, str]]) -> Report:
    """The report where all is finite: which primitive makes the gradient grow most."""

    def growth(node: Node) -> float:
        into = max((p.peak for p in node.parents if p.backward), default=0.0)
        return node.peak / into if node.name and 0 < into < math.inf else 0.0

    best = max(trail.nodes, key=growth, default=None)
    if best is None or not growth(best):
        message = (
            "All is finite, and no result depends on a floating-point argument; integers are not "
            "differentiated: give 0.0 instead of 0"
        )
        if any(cell.node.backward for cell, _ in slopes):
            message = "All is finite, and the gradient is 0"
        return Report("finite", "gradient", None, (), None, None, None, (), message)
    ratio = growth(best)
    largest = max(cell.node.peak for cell, _ in slopes)
    into, out = best.peak / ratio, best.peak
    chain = _names([n for n in tapes.descent(best) if n.backward])
    times = sum(n.eqn is best.eqn for n in trail.nodes)
    passed = f", passed {times} times" if times > 1 else ""
    steep = ratio > 1e3 or largest > 1e6
    return Report(
        kind="finite",
        where="gradient",
        primitive=best.name,
        operands=(into, out),
        index=None,
        source=best.source,
        fed_by=None,
        chain=chain,
        message=f"All is finite, and the largest gradient is {largest:.3g}",
        details=(
            f"most     `{best.name}` amplifies it by {ratio:.3g}, from {into:.3g} to {out:.3g}",
            f"at       {best.source}{_context(best, None)}{passed}",
            f"chain    {_arrows(chain)}",
        ),
        suggestion=_CLIPPING if steep else None,
        amplification=ratio,
    )


def _suggestion(where: Where, node: Node, operands: tuple[Any, ...], feed: Way) -> str | None:
    """The remedy of a known pattern, the most specific first."""
    if not node.name:
        return "look at where that came from; nothing here made it"
    if "in nan_slope" in f"{node.source} {feed[-1][0].source if feed else ''}":
        return (
            "this derivative is NaN by intention, as no rule has it: where an edge's custom_jvp "
            "leaves out a width, give its rule that derivative too, or take the width out of the "
            "gradient by jax.lax.stop_gradient; of draws take no second derivatives"
        )
    maker = feed[-1][0] if feed else node
    ancestors = tapes.neighbourhood(node, 60) | tapes.neighbourhood(maker, 20)
    zero = any(isinstance(x, float) and x == 0 for x in operands)
    if maker.name == "exp" and math.isinf(maker.peak):
        return (
            "exp overflows: use the stable form (tg.special.sigmoid, log1pexp, log_sum_exp), "
            "or subtract the maximum first"
        )
    if where == "gradient" and ancestors & _ROOTS and maker.name in ("div", "rsqrt", "pow"):
        return _ROOT_AT_ZERO
    if maker.name in ("div", "log") and ancestors & {"erf", "erfc"}:
        return _UNDERFLOWN
    if where == "gradient" and "select_n" in ancestors:
        return (
            "a where does not stop 0 * inf on the way back: the double where replaces the "
            "argument of the branch not taken before the arithmetic, and selects after it"
        )
    if maker.backward and maker.name in ("mul", "dot_general", "add_any", "reduce_sum"):
        return "a gradient overflowed on the way back: tg.safe.clipped_gradient(x, bound) bounds it"
    if maker.backward and maker.name == "div":
        return (
            "a slope is infinite at 0, as that of log: keep its argument from 0 (before a softmax "
            "with tg.safe.clipped_logits), or bound the gradient with tg.safe.clipped_gradient"
        )
    if node.name in ("sub", "add", "add_any") and feed:
        return (
            "infinity minus infinity: infinite bounds belong to tg.special.standardize, sums of "
            "exponentials to tg.special.log_sum_exp"
        )
    if node.name == "div" and zero:
        return "a division by 0: replace the divisor where it vanishes before dividing"
    if node.name == "cholesky":
        return "the matrix is not positive definite: tg.ScaleTril takes a factor instead"
    if node.name in _DOMAINS:
        advice = f"the argument left the domain of `{node.name}` or reached its edge: constrain it"
        masks = " (a where around it must replace the argument too, not only the result)"
        return advice + (masks if where == "gradient" else "")
    return None


def _operands(node: Node, index: Index) -> tuple[Any, ...]:
    """Operand values at the element if the primitive works element by element, else summaries."""

    def described(x: Any) -> Any:
        array = tapes.plain_array(x)
        if array.ndim == 0:
            return array.item()
        if array.shape == node.shape and node.name in tapes.ELEMENTWISE:
            return array[index].item()
        kind = f"{array.dtype.name}{list(array.shape)}"
        bad = np.argwhere(~np.isfinite(array)) if array.dtype.kind in "fc" else np.empty((0, 0))
        return f"{kind} with {array[tuple(bad[0])]}{_at(bad[0])}" if len(bad) else kind

    return tuple(described(x) for x in node.operands)


def _origin_name(node: Node) -> str:
    return node.label or "a constant written into the program"


def _context(node: Node, index: Index | None) -> str:
    inside = f", in {node.inside}" if node.inside else ""
    return inside + (f", element {[int(i) for i in index]}" if index else "")


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(n.name for n in nodes if n.name)


def _arrows(names: Sequence[str]) -> str:
    runs = [(name, len(list(group))) for name, group in itertools.groupby(names)]
    shown = [name if count == 1 else f"{name} x {count}" for name, count in runs]
    if len(shown) > 10:
        shown[4:-5] = [f"({len(shown) - 9} more)"]
    return " -> ".join(shown)


def _listed(operands: tuple[Any, ...]) -> str:
    return " and ".join(str(x) for x in operands)


def _at(index: Sequence[int]) -> str:
    return f" at {[int(i) for i in index]}" if len(index) else ""


def _is_inexact(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return isinstance(leaf, (float, complex)) or (
        dtype is not None and jnp.issubdtype(dtype, jnp.inexact)
    )


def _inexact_leaves(tree: Any, name: str) -> list[tuple[str, jax.Array]]:
    return [
        (f"{name} {jax.tree_util.keystr(path)}".strip(), jnp.asarray(leaf))
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if _is_inexact(leaf)
    ]


def _argument_names(fun: Callable[..., Any], count: int) -> list[str]:
    numbered = [f"args[{i}]" for i in range(count)]
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature; numbers will do
        return numbered
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in single][:count]
    return names + numbered[len(names) :]
