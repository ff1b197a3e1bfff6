"""Errors of moments in standard deviations, and what moments of a box must satisfy."""

import numpy as np


def deviations(covariance):
    return np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))


def errors(moments, mean, covariance):
    """Largest errors of mean and covariance, in standard deviations of the true distribution."""
    scale = deviations(covariance)
    of_mean = np.abs(moments.mean - mean) / scale
    of_covariance = np.abs(moments.covariance - covariance) / scale[..., None] / scale[..., None, :]
    return of_mean.max(), of_covariance.max()


def assert_sound(moments, low, high):
    """Inside the box, symmetric, and positive semi-definite up to the rounding of its entries."""
    assert np.all((low <= moments.mean) & (moments.mean <= high))
    scale = deviations(moments.covariance)
    matrix = np.asarray(moments.covariance)
    correlation = matrix / scale[..., None] / scale[..., None, :]
    assert np.all(np.linalg.eigvalsh(correlation)[..., 0] > -4 * np.finfo(matrix.dtype).eps)
    np.testing.assert_array_equal(matrix, np.swapaxes(matrix, -1, -2))
