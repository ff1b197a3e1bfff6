"""Statistics of files that are read a chunk at a time, whole and in parts."""

import subprocess
import sys

import numpy as np
import pytest

import truncgauss as tg
from truncgauss import tables

ROWS = np.random.default_rng(0).normal(1e6, 1.0, size=(1009, 2))  # a prime number of rows
WEIGHTS = np.arange(1009.0) % 3
KINDS = ["csv", "npy", "npz", "compressed.npz", "parquet"]


def written(folder, kind):
    path = folder / f"rows.{kind}"
    named = {"x": ROWS[:, 0], "y": ROWS[:, 1], "w": WEIGHTS}
    if kind == "csv":
        table = np.column_stack(list(named.values()))
        np.savetxt(path, table, "%.17g", ",", header="x,y,w", comments="")
    elif kind == "npy":
        np.save(path, ROWS)
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(named), path, row_group_size=100)
    else:
        (np.savez_compressed if "compressed" in kind else np.savez)(path, **named)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_in_parts_has_its_rows(kind, tmp_path):
    path, names = written(tmp_path, kind), None if kind == "npy" else ["x", "y"]
    sizes = [len(rows) for i in range(3) for rows in tables.chunks(path, names, (i, 3), 100)]
    assert sum(sizes) == len(ROWS) and max(sizes) == 100
    every = np.concatenate(list(tables.chunks(path, names, size=64)))
    np.testing.assert_array_equal(every, ROWS)


def test_what_cannot_be_streamed_is_said(tmp_path):
    path, bare = written(tmp_path, "npz"), written(tmp_path, "npy")
    with pytest.raises(ValueError, match="column 'z' is not in the header"):
        tg.Statistics.from_file(path, ["z"])
    with pytest.raises(ValueError, match="0 <= i < k"):
        tg.Statistics.from_file(path, part=(2, 2))
    with pytest.raises(ValueError, match="no names of columns"):
        tg.Statistics.from_file(bare, ["x"])
    gaps = tmp_path / "gaps.csv"
    gaps.write_text("x\n1\n\n2\nnan\n")
    with pytest.raises(ValueError, match=r"gaps.csv:5: column 'x' must be a number"):
        tg.Statistics.from_file(gaps)
    infinite = tmp_path / "infinite.npz"
    np.savez(infinite, x=np.array([1.0, np.inf]))
    with pytest.raises(ValueError, match="row 0 of it onwards.*NaN or infinity, first row 1"):
        tg.Statistics.from_file(infinite)
    two = tmp_path / "two.csv"
    two.write_text("x\n1\n2\n")
    with pytest.raises(ValueError, match="part 3 of 4 of .* has no row"):
        tg.Statistics.from_file(two, part=(3, 4))


MEASURED = """
import resource, sys, numpy as np, truncgauss as tg
tg.Statistics.from_rows(np.zeros((2**16, 2)) + np.arange(2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = tg.Statistics.from_file(sys.argv[1])
print(found.num_rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """Resident pages of a mapped file count as the process's until they are given back."""
    peaks = {}
    for millions in (1, 8):
        path = tmp_path / f"{millions}.npy"
        shape = (millions * 10**6, 2)
        file = np.lib.format.open_memmap(path, "w+", np.float64, shape)
        file[:] = np.random.default_rng(1).normal(size=(10**6, 2)).repeat(millions, axis=0)
        file.flush()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, path], capture_output=True, text=True, check=True
        )
        count, peaks[millions] = map(int, done.stdout.split())
        assert count == shape[0]
    assert peaks[8] < peaks[1] + 16 * 1024  # KiB; the larger file has 112 MiB more


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_rows(kind, tmp_path):
    path, names = written(tmp_path, kind), None if kind == "npy" else ["x", "y"]
    assert tables.num_rows(path, names) == len(ROWS)
    for begin, end in ((0, 1), (130, 777), (1000, 2000), (1009, 1010)):
        found = list(tables.chunks(path, names, size=100, rows=slice(begin, end)))
        np.testing.assert_array_equal(np.concatenate([np.empty((0, 2)), *found]), ROWS[begin:end])
    with pytest.raises(ValueError, match="0 <= begin, got slice"):
        next(tables.chunks(path, names, rows=slice(0, 9, 2)))
