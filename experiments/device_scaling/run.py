"""Fresh processes with 1, 2, ... devices, and several processes, measured in turn.

A device of the host is a share of its processor: n devices may use min(n, cores) cores, and one
device one core. So the ideal time is that of one device over min(n, cores), and the efficiency is
the ideal over the measured time. Where other programs run beside, times say little; processor
seconds count what was computed, whoever else was served.

What the machine itself loses is measured by independent processes, as many as cores, that do the
work of one device each at the same time: cores that share caches, memory or a clock slow each other
down even then. No spreading can do better than these.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKS = (
    ("rows", "strong"), ("rows", "weak"), ("points", "strong"), ("points", "weak"),
    ("file", "strong"),
)  # fmt: skip
PROBE = Path(__file__).with_name("probe.py")
FIELDS = ("wall", "work", "memory")
LIMIT = 600  # seconds for a probe


def run(settings):
    """Times, processor seconds, memory and efficiencies of both kinds of work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0]
    found = {(count, False): [] for count in settings.num_devices}
    found |= {(count, True): [] for count in settings.num_processes if count > 1}
    beside = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.npy")
        np.save(path, table(settings.file.num_rows, settings.file.dimension))
        for _ in range(settings.num_repeats):
            for count, apart in found:
                found[count, apart].append(probed(settings, path, count, cores, apart))
            if cores > 1:
                beside.append(independent(settings, path, cores))
    bounds, scaling = bounds_of(found[1, False], beside), {}
    for kind, name in WORKS:
        counts = [(count, False) for count in settings.num_devices]
        scaling[f"{kind}, {name}"] = curve(f"{kind}, {name}", found, counts, cores)
        counts = [(1, False), *((count, True) for count, apart in found if apart)]
        if name == "strong" and len(counts) > 1:
            scaling[f"{kind}, processes"] = curve(f"{kind}, strong", found, counts, cores)
    largest = max(float(one.pop("difference")) for one in scaling.values())
    larger = larger_fit(settings, found)
    return {
        "cores": cores,
        "load": load,
        "scaling": scaling,
        "bounds": bounds,
        "largest_difference": largest,
        "larger": larger,
        "summary": [
            *summary(cores, load, scaling, largest),
            *losses(cores, scaling, bounds),
            *account(settings, larger),
        ],
        "failed": "" if largest < 1e-12 else f"results differ by {largest:.1e}",
    }


def table(num_rows, d):
    """Rows, each above lower limits of its own, which stand beside it: shape (num_rows, 2 d)."""
    rng = np.random.default_rng(0)
    low = rng.normal(size=(num_rows, d)) - 1.5
    return np.hstack([low + rng.exponential(size=low.shape), low])


def curve(name, found, counts, cores):
    """One kind of work over numbers of devices, or of processes with one each where so marked."""
    every = [[one[name] for one in found[count]] for count in counts]
    counts = [count for count, _ in counts]
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
    same = name != "points, weak"  # more replicates are another estimate
    return table | {
        "counts": np.array(counts),
        "held": np.array([each[0]["held"] for each in every]),
        "efficiency": clock * size / ideal,
        "work_efficiency": work * size,
        "difference": max(float(np.abs(v - first).max() / np.abs(first).max()) for v in values)
        if same
        else 0.0,
    }


def asked_of(settings, path, count):
    """The work of a probe by name, with its settings; weak scaling has `count` times as much."""
    grown, works = {"rows": "num_rows", "points": "num_replicates"}, {}
    for kind, name in WORKS:
        given = getattr(settings, kind).model_dump() | {"path": str(path)}
        if name == "weak":
            given[grown[kind]] *= count
        works[f"{kind}, {name}"] = kind, given
    return works


def probed(settings, path, count, cores, apart):
    """What `probe` says: of one process with `count` devices, or of `count` processes with one."""
    works = asked_of(settings, path, count)
    if not apart:
        found = said_by(settings, works, [[str(count), str(min(count, cores))]])
    else:
        works, meeting = strong(works), f"127.0.0.1:{free_port()}"
        places = [["1", "1", meeting, str(count), str(i)] for i in range(count)]
        found = said_by(settings, works, places)
    return {name: together([one[name] for one in found]) for name in works}


def independent(settings, path, count):
    """What `count` processes say that each do the work of one device, at the same time."""
    works = strong(asked_of(settings, path, 1))
    with tempfile.TemporaryDirectory() as folder:
        places = [["1", "1", folder, str(count), str(i)] for i in range(count)]
        found = said_by(settings, works, places)
    return {name: [one[name] for one in found] for name in works}


def strong(works):
    """The works of strong scaling."""
    return {name: work for name, work in works.items() if "strong" in name}


def bounds_of(alone, beside):
    """The time of a process alone over that of one beside others, by work: by the clock, and by
    processor seconds; the median over repetitions."""
    if not beside:
        return {}
    return {
        name: {
            field: float(np.median([
                first[name][field] / np.mean([one[field] for one in each[name]])
                for first, each in zip(alone, beside, strict=True)
            ]))
            for field in ("wall", "work")
        }
        for name in beside[0]
    }  # fmt: skip


def losses(cores, scaling, bounds):
    """What of the efficiency the machine loses, and what the library, as sentences."""
    for name, bound in bounds.items():
        reached = {
            other: curve["efficiency"][list(curve["counts"]).index(cores)]
            for other, curve in scaling.items()
            if other.split(",")[0] == name.split(",")[0] and cores in curve["counts"]
        }
        listed = ", ".join(
            f"{other} {value / bound['wall']:.2f}" for other, value in reached.items()
        )
        yield (
            f"{name.split(',')[0]}: {cores} independent processes at once reach "
            f"{bound['wall']:.2f} of the speed of one alone by the clock, {bound['work']:.2f} by "
            f"processor seconds; of that bound: {listed or 'not measured'}"
        )


def said_by(settings, works, places):
    """What probes say that run at the same time, one for each place among devices or processes."""
    words = [sys.executable, str(PROBE), json.dumps(works), str(settings.num_calls)]
    words = [[*words, *place] for place in places]
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
            place = " ".join(places[0][:2])
            raise RuntimeError(f"device_scaling: a probe of {place} failed: {last[0]}")
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def together(parts):
    """The slowest process is waited for; the work is that of all, the memory that of each."""
    return parts[0] | {
        "wall": max(one["wall"] for one in parts),
        "work": sum(one["work"] for one in parts),
        "held": sum(one["held"] for one in parts),
    }


def larger_fit(settings, found):
    """What a fit of many rows with limits of their own would take, by the units measured here."""
    asked, file = settings.larger, settings.file
    one, two = (found[found_at][0]["file, strong"] for found_at in list(found)[:2])
    row_bytes = 8 * 2 * file.dimension
    each = asked.num_rows / asked.num_devices  # rows of a device
    seconds = {name: one[name] / file.num_rows * each for name in ("made", "work")}
    count, exchanged = two["exchanged"]
    return {
        "row_bytes": row_bytes,
        "bytes_of_device": row_bytes * each,
        "held_by_row": one["memory"] / file.num_rows,
        "parts": int(np.ceil(one["memory"] / file.num_rows * each / (1e9 * asked.gigabytes))),
        "reading": seconds["made"],
        "gradient": seconds["work"],
        "collectives": count,
        "exchanged": exchanged,
        "waiting": count * asked.latency,
        "fit": seconds["made"] + asked.num_gradients * (seconds["work"] + count * asked.latency),
    }


def account(settings, larger):
    """That as sentences."""
    asked, d = settings.larger, settings.file.dimension
    yield (
        f"{asked.num_rows:.2g} rows of {d} numbers, each with {d} limits of its own, on "
        f"{asked.num_devices} devices like one of these cores:"
    )
    yield (
        f"{larger['row_bytes']} bytes a row, {larger['row_bytes'] * asked.num_rows / 1e9:.0f} GB "
        f"in all, {larger['bytes_of_device'] / 1e9:.2f} GB a device, read in "
        f"{larger['reading']:.0f} s; a gradient holds {larger['held_by_row']:.0f} bytes a row, so "
        f"{larger['parts']} part(s) for {asked.gigabytes:g} GB"
    )
    yield (
        f"a value with its gradient {larger['gradient']:.0f} s, and {larger['collectives']} "
        f"collective(s) of {larger['exchanged']} bytes together, whatever the number of rows: "
        f"{larger['waiting']:.1e} s at {asked.latency:g} s each"
    )
    yield f"a fit of {asked.num_gradients} such gradients: {larger['fit'] / 60:.0f} minutes"


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
