"""The truncated normal distribution in 200 digits, with derivatives by their differences."""

import itertools

import mpmath as mp
import numpy as np

DIGITS = 200


class Truth:
    """The normal distribution truncated to [low, high], for the floats as they are."""

    def __init__(self, loc, scale, low, high):
        self.loc, self.scale = mp.mpf(loc), mp.mpf(scale)
        self.a = (mp.mpf(low) - self.loc) / self.scale
        self.b = (mp.mpf(high) - self.loc) / self.scale
        self.upper_a, self.upper_b = self.tail(self.a), self.tail(self.b)
        self.lower_a, self.lower_b = self.tail(-self.a), self.tail(-self.b)
        upper = self.a + self.b > 0
        self.mass = self.upper_a - self.upper_b if upper else self.lower_b - self.lower_a
        self.at_a, self.at_b = self.density(self.a), self.density(self.b)

    @staticmethod
    def tail(x):
        if mp.isinf(x) or abs(x) > 1e7:
            return mp.mpf(0 if x > 0 else 1)
        return mp.erfc(x / mp.sqrt(2)) / 2

    @staticmethod
    def density(x):
        return mp.mpf(0) if mp.isinf(x) else mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)

    @property
    def log_mass(self):
        return mp.log(self.mass)

    @property
    def moments(self):
        mean = (self.at_a - self.at_b) / self.mass
        left = 0 if mp.isinf(self.a) else self.a * self.at_a
        right = 0 if mp.isinf(self.b) else self.b * self.at_b
        second = 1 + (left - right) / self.mass
        return mean, second

    @property
    def mean(self):
        return self.loc + self.scale * self.moments[0]

    @property
    def variance(self):
        mean, second = self.moments
        return self.scale**2 * (second - mean**2)

    @property
    def entropy(self):
        return mp.log(mp.sqrt(2 * mp.pi) * self.scale * self.mass) + self.moments[1] / 2

    def log_density(self, x):
        z = (mp.mpf(x) - self.loc) / self.scale
        return -z * z / 2 - mp.log(mp.sqrt(2 * mp.pi) * self.scale * self.mass)

    def quantile(self, uniform, start):
        """Newton's method in the log of the smaller side, from a start that must be close."""
        u, y = mp.mpf(uniform), (mp.mpf(start) - self.loc) / self.scale
        upper = y > 0
        if upper:
            target = (1 - u) * self.upper_a + u * self.upper_b
        else:
            target = (1 - u) * self.lower_a + u * self.lower_b
        for _ in range(60):
            side = self.tail(y if upper else -y)
            step = mp.log(side / target) * side / self.density(y)
            y += step if upper else -step
            if abs(step) < mp.mpf(10) ** (-mp.mp.dps // 2):
                return self.loc + self.scale * y
        raise ArithmeticError(f"no convergence from {start}")


def derivatives(function, arguments, order):
    """Value, gradient and Hessian of a function from floats to k numbers: (k,), (k, n), (k, n, n).

    Arguments that are infinite have derivative 0.
    """
    with mp.workdps(DIGITS):
        x = [mp.mpf(float(v)) for v in arguments]
        h = _step(x)
        live = [i for i, v in enumerate(x) if not mp.isinf(v)]

        def at(shifts):
            moved = (v + shifts.get(i, 0) * h for i, v in enumerate(x))
            return np.array(function(*moved), dtype=object)

        value = at({})
        results = [value.astype(float)]
        if order >= 1:
            gradient = np.zeros((len(value), len(x)))
            plus, minus = {i: at({i: 1}) for i in live}, {i: at({i: -1}) for i in live}
            for i in live:
                gradient[:, i] = (plus[i] - minus[i]) / (2 * h)
            results.append(gradient)
        if order >= 2:
            hessian = np.zeros((len(value), len(x), len(x)))
            for i in live:
                hessian[:, i, i] = (plus[i] - 2 * value + minus[i]) / h**2
            for i, j in itertools.combinations(live, 2):
                both = at({i: 1, j: 1}) - plus[i] - plus[j] + value
                back = at({i: -1, j: -1}) - minus[i] - minus[j] + value
                hessian[:, i, j] = hessian[:, j, i] = (both + back) / (2 * h * h)
            results.append(hessian)
        return results


def _step(x):
    """A thirtieth power of ten below the smallest length in the problem: the scale leads."""
    finite = [abs(v) for v in x if not mp.isinf(v) and v != 0]
    gaps = [abs(u - v) for u, v in itertools.combinations(x, 2) if not mp.isinf(u - v) and u != v]
    return min([*finite, *gaps, mp.mpf(1)]) * mp.mpf(10) ** -35
