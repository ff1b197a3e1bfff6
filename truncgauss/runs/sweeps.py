"""Sweeps: the runs of a product of settings, in one folder with a table of what came out.

The folder is named after the settings, so that each run of a job array finds it; a run that is
complete is not made again.

    config.yaml      the settings, with what is swept
    000, 001, ...    the runs, in the order of the product
    summary.csv      a line for each run: what distinguishes it, how it ended, its scalars
    summary.json     the same
    report.html      the same, with links to the runs' reports
"""

import csv
import hashlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truncgauss.runs import completed as completed_runs, report, running
from truncgauss.execution import files
from truncgauss.runs import config as settings
from truncgauss.runs.completed import PARTIAL
from truncgauss.runs.config import Experiment

FEW = 5  # results that are printed next to what is swept


def folder_of(place: Path, config: Experiment) -> Path:
    """Where the runs of a sweep go, made if it is not there yet."""
    text = settings.dump(config)
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    folder = place / f"{settings.stem(config.experiment)}-sweep-{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / "config.yaml", settings.with_schema(text, config.experiment))
    return folder


def run(
    folder: Path,
    config: Experiment,
    command: list[str],
    save_every: float,
    index: int | None = None,
) -> None:
    """Make the runs of a sweep that are not complete yet, or one of them.

    Args:
        folder: from `folder_of`.
        config: the settings, with `sweep`.
        command: the words typed, for the provenance.
        save_every: seconds between two checkpoints.
        index: which run to make alone, 0 for the first.

    Raises:
        ValueError: there is no such run, or one of them cannot use its data.
        ConfigError: settings that this machine cannot satisfy.
    """
    members = settings.members(config)
    if index is not None and not 0 <= index < len(members):
        raise ValueError(f"index must be 0 to {len(members) - 1} (got {index})")
    for number in range(len(members)) if index is None else (index,):
        changes, member = members[number]
        final = folder / f"{number:03d}"
        if (final / "summary.json").is_file():
            continue
        partial = final.with_name(f"{final.name}{PARTIAL}")
        shown = ", ".join(f"{name} = {value}" for name, value in changes.items())
        print(f"truncgauss: run {number + 1} of {len(members)}: {shown}", file=sys.stderr)
        running.prepare(member)
        there = partial if (partial / "config.yaml").is_file() else None
        running.run(member, command, save_every, folder, resumed=there, name=final.name)


def gather(folder: Path, columns: Sequence[str] = ()) -> list[str]:
    """Write the table of a sweep's runs, and return lines of it.

    Args:
        folder: of the sweep.
        columns: patterns of the results in these lines, as for `completed_runs.chosen`; by default
            the first few: those that differ.

    Raises:
        ValueError: there is no sweep in the folder, or no such result.
    """
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"no sweep (got {folder})")
    config = settings.load(folder / "config.yaml")
    if not config.sweep:
        raise ValueError(f"{folder} is no sweep, but a run")
    members = enumerate(settings.members(config))
    parts = [row(folder / f"{i:03d}", changes) for i, (changes, _) in members]
    rows = [about | values for about, values in parts]
    about, values = list(parts[0][0]), completed_runs.ordered([values for _, values in parts])
    names = [*about, *values]
    text = io.StringIO()
    table = csv.DictWriter(text, names, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    files.write(folder / "summary.csv", text.getvalue())
    files.write(folder / "summary.json", json.dumps({"runs": rows}, indent=2) + "\n")
    cells = [[completed_runs.shown(each.get(name, "")) for name in names] for each in rows]
    files.write(folder / "report.html", report.sweep_page(folder.name, names, cells))
    printed = completed_runs.chosen(values, columns) if columns else values[:FEW]
    kept = [names.index(name) for name in (*about, *printed)]
    lines = completed_runs.table([tuple(each[i] for i in kept) for each in ([*names], *cells)])
    return [*lines, f"table: {folder / 'summary.csv'}"]


def failed(folder: Path, index: int | None) -> bool:
    """Whether a run of a sweep, or the one with this index, has failed."""
    which = "*" if index is None else f"{index:03d}"
    ended = (json.loads(path.read_text("utf-8")) for path in folder.glob(f"{which}/summary.json"))
    return any(each["reason"] for each in ended)


def row(folder: Path, changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line of the table: the run, what distinguishes it and how it ended; and its scalars."""
    about = {"run": folder.name, **{name: plain(value) for name, value in changes.items()}}
    if not (folder / "summary.json").is_file():
        begun = folder.with_name(f"{folder.name}{PARTIAL}").is_dir()
        return about | {"status": "unfinished" if begun else "missing"}, {}
    done = completed_runs.read(folder)
    seconds = {"seconds": done.provenance.get("seconds", "")}
    return about | {"status": done.summary["status"]}, done.summary["values"] | seconds


def plain(value: Any) -> Any:
    """A value of a setting as JSON and CSV take it."""
    return value if isinstance(value, str | int | float) else str(value)
