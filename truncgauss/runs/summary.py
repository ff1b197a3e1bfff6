"""Runs side by side: a list of them, and the table of a sweep."""

import csv
import fnmatch
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truncgauss.execution import writing
from truncgauss.runs import config as settings
from truncgauss.runs.folder import PARTIAL, is_running, read

FEW = 5  # results that are printed next to what is swept


def listed(runs: Path) -> list[str]:
    """A line for each run in a folder of runs, the oldest first: name, state, seconds, summary.

    Raises:
        ValueError: there is no such folder.
    """
    if not runs.is_dir():
        if runs.is_file():
            raise ValueError(f"a file, not a folder of runs (got {runs}): truncgauss list FOLDER")
        raise ValueError(
            f"no such folder (got {runs}); truncgauss run CONFIG makes a run, in runs/"
        )
    if (runs / "summary.json").is_file():
        raise ValueError(
            f"one run, whose results are in summary.json, not a folder of runs (got {runs}); to "
            f"list those: truncgauss list {runs.parent}"
        )
    rows = []
    for folder in sorted(path for path in runs.iterdir() if (path / "config.yaml").is_file()):
        if folder.suffix == PARTIAL:
            if is_running(folder):
                rows.append((folder.name, "running", "", ""))
            else:
                rows.append((folder.name, "unfinished", "", f"truncgauss run --resume {folder}"))
            continue
        if is_sweep(folder):
            done = len(list(folder.glob("[0-9]*/summary.json")))
            running = sum(map(is_running, folder.glob(f"[0-9]*{PARTIAL}")))
            more = f", {running} running" if running else ""
            rows.append((folder.name, "sweep", "", f"{done} complete runs{more}"))
            continue
        try:
            run = read(folder)
        except ValueError as error:
            rows.append((folder.name, "damaged", "", str(error)))
            continue
        said = run.summary["reason"] or next(iter(run.summary["summary"]), "")
        seconds = run.provenance.get("seconds")
        time = "" if seconds is None else f"{seconds:.1f} s"
        rows.append((folder.name, run.summary["status"], time, said))
    return table(rows) if rows else [f"no run in {runs}; truncgauss run CONFIG makes one"]


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds the runs of a sweep."""
    config = folder / "config.yaml"
    lines = config.read_text("utf-8").splitlines() if config.is_file() else []
    return any(line.startswith("sweep:") for line in lines)


def gather(folder: Path, columns: Sequence[str] = ()) -> list[str]:
    """Write the table of the runs in the folder of a sweep, and return lines of it: with the
    results that patterns such as `fit/*` describe, or else the first few. Those that differ come
    first, and times, which always do, last.

    Raises:
        ValueError: there is no sweep in the folder, or no such result.
    """
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"no sweep (got {folder}); `truncgauss list` shows those there are")
    config = settings.load(folder / "config.yaml")
    if not config.sweep:
        raise ValueError(f"{folder} is no sweep, but a run")
    members = enumerate(settings.members(config))
    parts = [row(folder / f"{i:03d}", changes) for i, (changes, _) in members]
    rows = [about | values for about, values in parts]
    complete = [values for _, values in parts if values]

    def is_late(name: str) -> tuple[bool, bool]:
        missing = any(name not in run for run in complete)
        differs = missing or len({str(run[name]) for run in complete}) > 1
        return "seconds" in name, not differs

    values = sorted(dict.fromkeys(name for run in complete for name in run), key=is_late)
    about = list(parts[0][0])
    names = [*about, *values]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    writing.write(folder / "summary.csv", text.getvalue())
    writing.write(folder / "summary.json", json.dumps({"runs": rows}, indent=2) + "\n")
    if columns and not values:
        raise ValueError(
            "no run is complete yet, so that there are no results to choose; without --columns the "
            "table shows the status of each run"
        )
    printed = [] if columns else values[:FEW]
    for pattern in columns:  # loc[0] is one too, and first of all a name
        several = [pattern] if pattern in values else fnmatch.filter(values, pattern)
        if not several:
            known = ", ".join(map(repr, values))  # which may have commas
            raise ValueError(f"no result is called {pattern!r}; there are: {known}")
        printed += several
    values_of = ((each.get(name, "") for name in names) for each in rows)
    cells = [[f"{x:.6g}" if isinstance(x, float) else str(x) for x in line] for line in values_of]
    kept = [names.index(name) for name in (*about, *dict.fromkeys(printed))]
    lines = table([tuple(each[i] for i in kept) for each in ([*names], *cells)])
    return [*lines, f"table: {folder / 'summary.csv'}"]


def row(folder: Path, changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line of the table: the run, what distinguishes it and how it ended; and its scalars."""
    about: dict[str, Any] = {"run": folder.name}
    for name, value in changes.items():  # as JSON and CSV take it
        about[name] = value if isinstance(value, str | int | float) else str(value)
    if not (folder / "summary.json").is_file():
        partial = folder.with_name(f"{folder.name}{PARTIAL}")
        begun = "running" if is_running(partial) else "unfinished"
        return about | {"status": begun if partial.is_dir() else "missing"}, {}
    done = read(folder)
    seconds = {"seconds": done.provenance.get("seconds", "")}
    return about | {"status": done.summary["status"]}, done.summary["values"] | seconds


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with the columns of the rows below each other, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]
