"""Runs that are killed, interrupted, or meet a full disk end with the result of a quiet run.

`TRUNCGAUSS_KILLS=200` sends as many kills, a quarter as many SIGTERM and SIGINT each, and a tenth
as many full disks.
"""

import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent
NUM_KILLS = int(os.environ.get("TRUNCGAUSS_KILLS", "10"))
# Which share of the disturbances each part of the work gets; it takes seconds to compile the last.
PARTS = {"rows": 0.5, "descent": 0.35, "newton": 0.1, "em": 0.05}
CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}


class Nursery:
    """The process of nursery.py, which runs the command line in children of its own."""

    def __init__(self, folder):
        environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS.parent),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        }
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "nursery.py")], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words, **disturbed):
        order = {"folder": str(self.folder), "words": ["run", *map(str, words)], **disturbed}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def runs(self, ending=""):
        folders = (self.folder / "runs").glob(f"*{ending}")
        return [each for each in folders if (each / "config.yaml").exists()]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nursery")
    shutil.copyfile(TESTS / "interrupted.py", folder / "interrupted.py")
    settings = "experiment: interrupted.py\nseed: 3\npause: 0.02\nparts: [rows]\n"
    (folder / "i.yaml").write_text(settings)
    nursery = Nursery(folder)
    yield nursery
    nursery.process.stdin.close()
    nursery.process.wait(60)
    nursery.process.stdout.close()


@pytest.fixture(scope="module")
def quiet(nursery):
    """Results and seconds of undisturbed runs, by part; each is made once it is asked for."""
    found = {}

    def of(part):
        if part not in found:
            for _ in range(2):  # the second finds its programs compiled
                shutil.rmtree(nursery.folder / "runs", ignore_errors=True)
                done = nursery.run("i.yaml", "--parts", part)
                assert done["status"] == 0, done
            found[part] = result(nursery), done["seconds"]
        return found[part]

    return of


def result(nursery):
    (folder,) = nursery.runs()
    with np.load(folder / "result.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_run_that_was_stopped_ends_as_an_undisturbed_one(number, part, nursery, quiet):
    expected, seconds = quiet(part)
    shutil.rmtree(nursery.folder / "runs", ignore_errors=True)
    rng = random.Random(f"{number}{part}")
    share = 1 if number == signal.SIGKILL else 4
    count = math.ceil(NUM_KILLS * PARTS[part] / share)
    stopped, results = 0, []
    while stopped < count or nursery.runs(".partial") or not results:
        how = {"number": number, "after": rng.uniform(0.0, seconds)} if stopped < count else {}
        done = nursery.run(*next_words(nursery, part), "--save-every", "0.05", **how)
        if len(nursery.runs()) > len(nursery.runs(".partial")):  # complete, even if stopped then
            results.append(result(nursery))
            shutil.rmtree(nursery.folder / "runs")
        else:
            assert done["status"] == CODES[number] and "Traceback" not in done["text"], done
        stopped += done["status"] != 0
    assert all(equal(found, expected) for found in results)


def next_words(nursery, part):
    """Those that continue the run that was stopped, or begin one."""
    partial = nursery.runs(".partial")
    return ["--resume", partial[0]] if partial else ["i.yaml", "--parts", part]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rows", "descent"])  # which keep a state
def test_a_full_disk_is_one_line_and_loses_nothing(part, nursery, quiet):
    expected, _ = quiet(part)
    rng = random.Random(part)
    shutil.rmtree(nursery.folder / "runs", ignore_errors=True)
    full = 0
    for _ in range(math.ceil(NUM_KILLS * PARTS[part] / 10)):
        bytes_left = int(np.exp(rng.uniform(np.log(400), np.log(20_000))))
        words = next_words(nursery, part)
        done = nursery.run(*words, "--save-every", "0.05", most_bytes=bytes_left)
        assert done["status"] == 1, (bytes_left, done)
        lines = done["text"].splitlines()
        assert re.fullmatch(r"truncgauss: error: runs/\S+: File too large", lines[-1]), done
        assert "Traceback" not in done["text"], done
        full += 1
        if len(nursery.runs()) > len(nursery.runs(".partial")):  # all but the figure fitted
            assert equal(result(nursery), expected)
            shutil.rmtree(nursery.folder / "runs")
    assert full and nursery.run(*next_words(nursery, part))["status"] == 0
    assert equal(result(nursery), expected)
