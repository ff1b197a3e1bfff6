"""Log probabilities for PyTorch are those of JAX, with gradients as finite differences see them."""

import numpy as np
import pytest

import truncgauss as tg

torch = pytest.importorskip("torch")
from truncgauss.torch import log_probability  # noqa: E402


def problem(d, *batch):
    rng = np.random.default_rng(d)
    loc = torch.from_numpy(rng.normal(size=(*batch, d)))
    root = torch.from_numpy(0.3 * rng.normal(size=(*batch, d, d)) + np.eye(d))
    low = torch.from_numpy(rng.uniform(-2.0, -0.5, (*batch, d)))
    return loc, root, low, low + 2.5


def given_root(loc, root, low, high, method=tg.Automatic()):
    return log_probability(loc, root @ root.mT, low, high, method)


@pytest.mark.parametrize("d, batch", [(2, (3,)), (3, ())])
def test_values_are_those_of_jax(d, batch):
    loc, root, low, high = problem(d, *batch)
    found = given_root(loc, root, low, high)
    matrix = (root @ root.mT).numpy()
    expected = tg.log_probability(loc.numpy(), matrix, tg.Box(low.numpy(), high.numpy()))
    assert found.log_prob.dtype == torch.float64 and found.log_prob.shape == batch
    np.testing.assert_array_equal(found.log_prob.numpy(), expected.log_prob)
    np.testing.assert_array_equal(found.stderr.numpy(), expected.stderr)


def test_gradients_are_finite_differences():
    tensors = [tensor.requires_grad_() for tensor in problem(2, 3)]
    first = lambda *x: given_root(*x).log_prob
    assert torch.autograd.gradcheck(first, tensors, atol=1e-7)


def test_a_held_method_in_five_dimensions_is_one_function():
    loc, root, low, high = problem(5)
    matrix, box = (root @ root.mT).numpy(), tg.Box(low.numpy(), high.numpy())
    held = tg.Separation(64, 4).hold(loc.numpy(), matrix, box)
    tensors = [tensor.requires_grad_() for tensor in (loc, root, low, high)]
    first = lambda *x: given_root(*x, held).log_prob
    assert torch.autograd.gradcheck(first, tensors, atol=1e-7)
    assert given_root(*tensors, held).stderr > 0.0


def test_leading_axes_broadcast_and_infinite_limits_have_no_gradient():
    loc, root, low, _ = problem(2, 3)
    shared = low[0].clone().requires_grad_()
    high = torch.full((2,), torch.inf, dtype=torch.float64, requires_grad=True)
    given_root(loc, root, shared, high).log_prob.sum().backward()
    assert shared.grad.shape == (2,) and torch.all(high.grad == 0.0)
    each = low[:1].repeat(3, 1).requires_grad_()
    given_root(loc, root, each, high.detach().expand(3, 2)).log_prob.sum().backward()
    np.testing.assert_allclose(shared.grad.numpy(), each.grad.sum(0).numpy(), rtol=1e-10)


def test_only_what_needs_a_gradient_gets_one():
    loc, root, low, high = problem(2)
    found = given_root(loc.requires_grad_(), root, low, high)
    assert not found.stderr.requires_grad
    found.log_prob.backward()
    assert loc.grad is not None and low.grad is None
    assert not given_root(loc.detach(), root, low, high).log_prob.requires_grad


@pytest.mark.parametrize("power", [1, 2])
def test_second_derivatives_are_refused(power):
    loc, root, low, high = problem(2)
    log_prob = given_root(loc.requires_grad_(), root, low, high).log_prob
    [slope] = torch.autograd.grad(log_prob**power, loc, create_graph=True)
    [plain] = torch.autograd.grad(given_root(loc, root, low, high).log_prob ** power, loc)
    np.testing.assert_array_equal(slope.detach().numpy(), plain.numpy())
    with pytest.raises(NotImplementedError, match="first derivatives only. Take second ones in JA"):
        slope.sum().backward()


def test_other_types_are_refused():
    loc, root, low, high = problem(2)
    with pytest.raises(
        TypeError, match=r"loc must be a tensor of torch.float64, got torch.float32"
    ):
        log_probability(loc.float(), root @ root.mT, low, high)
    cure = r"torch.as_tensor\(high, dtype=torch.float64\)"
    with pytest.raises(TypeError, match=f"torch.float64, got ndarray; convert it by {cure}"):
        log_probability(loc, root @ root.mT, low, high.numpy())
