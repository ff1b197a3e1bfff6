"""Rows of published data sets, as observations and covariates, where the tables are at hand."""

import csv
import os
import pathlib

import numpy as np
import pytest

import truncgauss as tg

ROOT = pathlib.Path(__file__).parents[1]
SHARED = pathlib.Path(os.environ.get("TRUNCGAUSS_DATA", ROOT.parent / "shared" / "data"))
INF = np.inf
needed = pytest.mark.skipif(not SHARED.is_dir(), reason="no published tables beside the project")


def table(name):
    with open(SHARED / name, newline="") as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return np.array([float(row[name]) if row[name] != "NA" else np.nan for row in rows])


def covariates(rows, *names):
    return np.column_stack([np.ones(len(rows)), *(column(rows, name) for name in names)])


def tobin():
    """Purchases of durable goods, censored below 0."""
    rows = table("tobin.csv")
    y = column(rows, "durable")
    return tg.Observations(np.where(y > 0, y, -INF), y), covariates(rows, "age", "quant")


def affairs():
    """Counts treated as continuous, censored below 0 and from 4 on."""
    rows = table("affairs.csv")
    y = column(rows, "affairs")
    lower, upper = np.where(y > 0, np.minimum(y, 4.0), -INF), np.where(y >= 4.0, INF, y)
    names = ("age", "yearsmarried", "religiousness", "occupation", "rating")
    return tg.Observations(lower, upper), covariates(rows, *names)


def ohio():
    """Columns of four visits of children each, who wheezed or not."""
    rows = table("ohio_sixcities.csv")
    return {name: column(rows, name) for name in rows[0]}


def pm10():
    """Concentrations of particles, seen above 2 only."""
    rows = table("pm10_trunc.csv")
    names = ("cars", "temp", "wind.speed", "temp.diff", "wind.dir", "hour", "day")
    region = tg.Box([2.0], [INF])
    return tg.Observations.exact(column(rows, "PM10"), region=region), covariates(rows, *names)


def quasars():
    """Luminosities, each seen between limits of its own."""
    rows = table("quasars_dt.csv")
    y, low, high = (column(rows, name) for name in "yuv")
    return tg.Observations.exact(y, region=tg.Box(low[:, None], high[:, None]))


def iris():
    """Four lengths of flowers, the first known to an interval only."""
    rows = table("iris_interval.csv")
    names = ("Sepal.Width", "Petal.Length", "Petal.Width")
    rest = [column(rows, name) for name in names]
    sides = (np.column_stack([column(rows, f"SL_{side}"), *rest]) for side in ("lower", "upper"))
    return tg.Observations(*sides)


IRIS_LOC = np.array([5.759655, 3.057333, 3.758000, 1.199333])
IRIS_COVARIANCE = np.array(
    [
        [0.725987, -0.025573, 1.271268, 0.522211],
        [-0.025573, 0.188713, -0.327459, -0.120828],
        [1.271268, -0.327459, 3.095503, 1.286972],
        [0.522211, -0.120828, 1.286972, 0.577133],
    ]
)


def stars():
    """Beryllium and lithium in stars: detections, upper limits, and two missing values."""
    rows = table("censor_be.csv")
    lower, upper = np.empty((len(rows), 2)), np.empty((len(rows), 2))
    for j, name in enumerate(("Be", "Li")):
        value, known = column(rows, f"logN_{name}"), column(rows, f"Ind_{name}") == 1
        missing = np.isnan(value)
        upper[:, j] = np.where(missing, INF, value)
        lower[:, j] = np.where(known & ~missing, value, -INF)
    return tg.Observations(lower, upper)


STARS_LOC = np.array([0.848543112, 0.649584659])
STARS_COVARIANCE = np.array([[0.172901401, 0.586300112], [0.586300112, 3.30157262]])
