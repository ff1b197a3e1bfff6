"""Fresh processes with 1, 2, ... devices, and several processes, measured in turn.

A device of the host is a share of its processor: n devices may use min(n, cores) cores, and one
device one core. So the ideal time is that of one device over min(n, cores), and the efficiency is
the ideal over the measured time. Where other programs run beside, times say little; processor
seconds count what was computed, whoever else was served.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

PROBE = Path(__file__).with_name("probe.py")
FIELDS = ("wall", "work", "memory")
LIMIT = 600  # seconds for a probe


def run(settings):
    """Times, processor seconds, memory and efficiencies of both kinds of work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0]
    apart = (1, *(n for n in settings.num_processes if n > 1)) if settings.num_processes else ()
    found = {(count, False): [] for count in settings.num_devices}
    found |= {(count, True): [] for count in apart}
    for _ in range(settings.num_repeats):
        for count, processes in found:
            found[count, processes].append(probed(settings, count, cores, processes))
    scaling = {}
    for kind in ("rows", "points"):
        for name in ("strong", "weak"):
            counts = settings.num_devices
            scaling[f"{kind}, {name}"] = curve(f"{kind}, {name}", found, counts, False, cores)
        if apart:
            scaling[f"{kind}, processes"] = curve(f"{kind}, strong", found, apart, True, cores)
    largest = max(float(one.pop("difference")) for one in scaling.values())
    return {
        "cores": cores,
        "load": load,
        "scaling": scaling,
        "largest_difference": largest,
        "summary": list(summary(cores, load, scaling, largest)),
        "failed": "" if largest < 1e-12 else f"results differ by {largest:.1e}",
    }


def curve(name, found, counts, apart, cores):
    """One kind of work over numbers of devices, or of processes where these are `apart`."""
    every = [[one[name] for one in found[count, apart]] for count in counts]
    ideal = np.array([min(count, cores) for count in counts], float)
    size = np.array(counts, float) if "weak" in name else np.ones(len(counts))
    table = {
        field: np.array([np.median([one[field] for one in each]) for each in every])
        for field in FIELDS
    }
    # In turn, so that each repetition has one device and more beside each other in time.
    clock, work = (
        np.array([np.median([first[f] / one[f] for first, one in zip(every[0], each, strict=True)])
                  for each in every])
        for f in ("wall", "work")
    )  # fmt: skip
    first = np.array(every[0][0]["values"])
    values = [np.array(each[0]["values"])[: len(first)] for each in every]
    same = "rows" in name or "strong" in name  # more replicates are another estimate
    return table | {
        "counts": np.array(counts),
        "held": np.array([each[0]["held"] for each in every]),
        "efficiency": clock * size / ideal,
        "work_efficiency": work * size,
        "difference": max(float(np.abs(v / first - 1.0).max()) for v in values) if same else 0.0,
    }


def asked_of(settings, count):
    """The work of a probe by name, with its settings; weak scaling has `count` times as much."""
    works = {}
    for kind, grown in (("rows", "num_rows"), ("points", "num_replicates")):
        given = getattr(settings, kind).model_dump()
        works[f"{kind}, strong"] = kind, given
        works[f"{kind}, weak"] = kind, given | {grown: given[grown] * count}
    return works


def probed(settings, count, cores, apart):
    """What `probe` says: of one process with `count` devices, or of `count` processes with one."""
    works = asked_of(settings, count)
    if apart:
        works = {name: work for name, work in works.items() if "strong" in name}
    words = [sys.executable, str(PROBE), json.dumps(works), str(settings.num_calls)]
    if not apart:
        words = [[*words, str(count), str(min(count, cores))]]
    else:
        meeting = f"127.0.0.1:{free_port()}"
        words = [[*words, "1", "1", meeting, str(count), str(i)] for i in range(count)]
    probes = [
        subprocess.Popen(
            each, env=os.environ | {"JAX_PLATFORMS": "cpu"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for each in words
    ]  # fmt: skip
    try:
        said = [probe.communicate(timeout=LIMIT) for probe in probes]
    finally:
        for probe in probes:
            probe.kill()
    for probe, (_, error) in zip(probes, said, strict=True):
        if probe.returncode:
            last = error.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"device_scaling: {count} device(s) failed: {last[0]}")
    found = [json.loads(out.splitlines()[-1]) for out, _ in said]
    return {name: together([one[name] for one in found]) for name in works}


def together(parts):
    """The slowest process is waited for; the work is that of all, the memory that of each."""
    return parts[0] | {
        "wall": max(one["wall"] for one in parts),
        "work": sum(one["work"] for one in parts),
        "held": sum(one["held"] for one in parts),
    }


def free_port():
    """A port of the loopback interface that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def summary(cores, load, results, largest):
    """A table of efficiencies."""
    if load > 0.5:
        yield f"{load:.1f} other programs ran beside: times by the clock mean little"
    yield f"{cores} core(s); results on more devices differ by up to {largest:.1e} of their size"
    yield "devices: seconds, efficiency by the clock, by processor seconds, MiB a device"
    for name, curve in results.items():
        yield name
        for i, count in enumerate(curve["counts"]):
            yield (
                f"{count:4}: {curve['wall'][i]:8.3f} s {curve['efficiency'][i]:6.2f} "
                f"{curve['work_efficiency'][i]:6.2f} {curve['memory'][i] / 2**20:8.1f} MiB"
            )
