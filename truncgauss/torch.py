# PyTorch need not be installed where types are checked; without it its classes are of type Any.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
"""Log probabilities of boxes for PyTorch, with gradients; needs the extra `torch`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import Estimate
from truncgauss.gaussian.regions.box import Box
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.automatic import log_probability as of_arrays
from truncgauss.probability.method import Method

try:
    import torch
except ImportError as error:
    raise ImportError("truncgauss.torch needs PyTorch: pip install torch.") from error


def log_probability(
    loc: "torch.Tensor",
    covariance: "torch.Tensor",
    low: "torch.Tensor",
    high: "torch.Tensor",
    method: Method = Automatic(),
    key: Any = None,
) -> Estimate:
    """The log probability of boxes under Gaussians, as PyTorch tensors with their gradients.

    It is `tg.log_probability`, computed by JAX in float64 on JAX's default device; tensors are
    copied there and back. Backward gives the first derivatives in all four tensors. There are no
    second ones: for these use JAX, `jax.hessian` of `tg.log_probability`. In an optimisation hold
    the method first, `method.hold(loc, covariance, tg.Box(low, high))` with arrays, so that it is
    one smooth function.

    Args:
        loc: mean, float64, shape (..., d).
        covariance: covariance matrix, float64, shape (..., d, d).
        low, high: limits, float64, shape (..., d), infinite ones welcome. Leading axes broadcast.
        method: how to compute it.
        key: JAX random key of a sampling method; None as in `tg.log_probability`.

    Returns:
        Estimate(log_prob, stderr), tensors of the broadcast leading shape on the device of loc;
        stderr has no gradient.

    Raises:
        TypeError: if an argument is no tensor of float64.
        ValueError: as `tg.log_probability`.
        NotImplementedError: in backward, for a second derivative.

    Example:
        >>> import torch
        >>> from truncgauss.torch import log_probability
        >>> loc = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> limits = torch.zeros(2, dtype=torch.float64), torch.full((2,), torch.inf).double()
        >>> estimate = log_probability(loc, torch.eye(2).double(), *limits)
        >>> estimate.log_prob.backward()
        >>> round(estimate.log_prob.exp().item(), 6), loc.grad.numpy().round(6)
        (0.25, array([0.797885, 0.797885]))
    """
    inputs = {"loc": loc, "covariance": covariance, "low": low, "high": high}
    for name, tensor in inputs.items():
        if not isinstance(tensor, torch.Tensor):
            cure = f"torch.as_tensor({name}, dtype=torch.float64)"
            got = type(tensor).__name__
        elif tensor.dtype != torch.float64:
            cure, got = f"{name}.double()", tensor.dtype
        else:
            continue
        raise TypeError(
            f"{name} must be a tensor of torch.float64, got {got}; convert it by {cure}."
        )
    return Estimate(*LogProbability.apply(*inputs.values(), method, key))


class LogProbability(torch.autograd.Function):
    """`log_probability` as a function of autograd: (log_prob, stderr), and the derivatives."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Value and standard error; the derivatives wait until they are asked for."""
        *tensors, method, key = inputs

        def value(
            loc: jax.Array, covariance: jax.Array, low: jax.Array, high: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            estimate = of_arrays(loc, covariance, Box(low, high), method, key)
            return estimate.log_prob, estimate.stderr

        with jax.enable_x64(True):
            arrays = [jnp.asarray(tensor.detach().cpu().numpy()) for tensor in tensors]
            results = [as_tensor(array, tensors[0].device) for array in value(*arrays)]
        ctx.value, ctx.arrays, ctx.devices = value, arrays, [tensor.device for tensor in tensors]
        ctx.mark_non_differentiable(results[1])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        """The derivatives in loc, covariance, low and high."""
        with jax.enable_x64(True):
            pull_back = jax.vjp(ctx.value, *ctx.arrays, has_aux=True)[1]
            gradients = pull_back(jnp.asarray(slopes[0].detach().cpu().numpy()))
        tensors = [as_tensor(x, device) for x, device in zip(gradients, ctx.devices)]
        if torch.is_grad_enabled():  # as with create_graph=True
            tensors = FirstDerivatives.apply(*(tensor.requires_grad_() for tensor in tensors))
        pairs = zip(tensors, ctx.needs_input_grad)
        return *(tensor if needed else None for tensor, needed in pairs), None, None


class FirstDerivatives(torch.autograd.Function):
    """Derivatives as they are, which autograd must not take for constants."""

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        """The tensors themselves."""
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        """Not implemented.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "truncgauss.torch.log_probability has first derivatives only. Take second ones in JAX: "
            "jax.hessian(lambda loc: tg.log_probability(loc, covariance, region).log_prob)."
        )


def as_tensor(array: jax.Array, device: Any) -> "torch.Tensor":
    """A copy of an array."""
    return torch.from_numpy(np.array(array)).to(device)
