"""Processor seconds, compiled programs and memory of each test: `make test-times`.

A plugin of pytest, loaded by `-p tests.times`. What a test costs includes its fixtures and the
processes that it waits for; the first test of a file that shares a fixture pays for it. A program
counts where XLA compiles it, not where it is read from those kept on disk.
"""

import collections
import json
import os
import pathlib
import resource

import jax
import pytest

SLOWEST = 40
COST = "cost"


class Meter:
    """Listens to what this process compiles."""

    def __init__(self):
        self.programs = 0
        jax.monitoring.register_event_duration_secs_listener(self.count)
        jax.monitoring.register_event_listener(self.count)

    def count(self, event, *_, **__):
        self.programs += event == "/jax/core/compile/backend_compile_duration"  # read ones too
        self.programs -= event == "/jax/compilation_cache/cache_hits"

    def read(self):
        """Processor seconds of this process and its children, programs, and the peak in MB."""
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, -1))
        seconds = sum(usage.ru_utime + usage.ru_stime for usage in (own, children))
        return seconds, self.programs, own.ru_maxrss / 1024


meter = Meter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    seconds, programs, _ = meter.read()
    item.stash[item_start] = seconds, programs
    return (yield)


item_start = pytest.StashKey()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "teardown":
        seconds, programs, peak = meter.read()
        before = item.stash[item_start]
        report.user_properties.append(
            (COST, (round(seconds - before[0], 3), programs - before[1], round(peak), os.getpid()))
        )
    return report


costs = {}


def pytest_runtest_logreport(report):
    for name, value in report.user_properties:
        if name == COST and report.when == "teardown":
            costs[report.nodeid] = value


def pytest_terminal_summary(terminalreporter):
    if not costs:
        return
    line = terminalreporter.write_line
    files = collections.defaultdict(lambda: [0, 0.0, 0])
    for name, (seconds, programs, *_) in costs.items():
        total = files[name.split("::")[0]]
        total[0] += 1
        total[1] += seconds
        total[2] += programs
    row = "{:>9} {:>9} {:>6}  {}".format
    terminalreporter.section("processor seconds, programs, tests")
    for name, (tests, seconds, programs) in sorted(files.items(), key=lambda item: -item[1][1]):
        line(row(f"{seconds:.1f}", programs, tests, name))
    terminalreporter.section(f"the {SLOWEST} dearest tests")
    for name, (seconds, programs, *_) in sorted(costs.items(), key=lambda x: -x[1][0])[:SLOWEST]:
        line(row(f"{seconds:.1f}", programs, "", name))
    peaks = collections.defaultdict(int)
    for *_, peak, worker in costs.values():
        peaks[worker] = max(peaks[worker], peak)
    seconds, programs = (sum(cost[k] for cost in costs.values()) for k in (0, 1))
    line(
        f"{len(costs)} tests: {seconds:.0f} processor seconds, {programs} programs; "
        f"largest memory of a worker {max(peaks.values())} MB"
    )
    if path := os.environ.get("TEST_TIMES"):
        pathlib.Path(path).write_text(json.dumps(costs, indent=0))
