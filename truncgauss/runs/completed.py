"""Complete runs, read back from their folders: results, a list of them, and two side by side."""

import fnmatch
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from truncgauss.execution import files

PARTIAL = ".partial"
SUMMARY = ("experiment", "status", "reason", "summary", "values")  # keys of summary.json
NON_NUMERIC_KEYS = ("summary", "metrics", "failed")
"""Keys of a result that are kept apart from its numbers."""
CODES = "00|25|2E|2F"  # of zero byte, percent sign, full stop and slash


class CompletedRun(NamedTuple):
    """What the folder of a run holds; `runs` says which file is which.

    Attributes:
        folder: where it is.
        config: the settings as YAML text.
        results: what the experiment returned, as it reaches `plot`.
        summary: how it ended.
        provenance: how it was made.
    """

    folder: Path
    config: str
    results: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def experiment(self) -> str:
        """The name under which the figure is stored."""
        return str(self.summary["experiment"])


def read(folder: Path) -> CompletedRun:
    """The run in a folder.

    Raises:
        ValueError: there is none, it is not complete, or one of its files cannot be read.
    """
    if not (folder / "summary.json").is_file():
        partial = folder.suffix == PARTIAL or folder.with_name(f"{folder.name}{PARTIAL}").is_dir()
        why = "that run is not complete" if partial else "no such run"
        raise ValueError(f"{why} (got {folder})")
    config = _contents(folder / "config.yaml", _text)
    summary = _contents(folder / "summary.json", _summary)
    provenance = _contents(folder / "provenance.json", _json)
    results = nested(_contents(folder / "result.npz", _arrays))
    if (metrics := folder / "metrics.jsonl").is_file():
        results["metrics"] = _contents(
            metrics, lambda path: [*map(_parsed, _text(path).splitlines())]
        )
    results |= {"summary": summary["summary"], "failed": summary["reason"]}
    return CompletedRun(folder, config, results, summary, provenance)


def _contents(path: Path, read: Callable[[Path], Any]) -> Any:
    """What a file of a run holds.

    Raises:
        ValueError: it cannot be read; with what to do.
    """
    try:
        return read(path)
    except (OSError, ValueError) as error:
        why = files.said(error) if isinstance(error, OSError) else f"{path}: {error}"
        raise ValueError(
            f"the run cannot be read: {why}. Put back a copy of that file, or make the run again: "
            f"truncgauss run {path.with_name('config.yaml')}"
        ) from error


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def _json(path: Path) -> dict[str, Any]:
    """An object of JSON."""
    found = _parsed(_text(path))
    if not isinstance(found, dict):
        raise ValueError("it should hold an object of JSON")
    return found


def _summary(path: Path) -> dict[str, Any]:
    found = _json(path)
    if missing := [key for key in SUMMARY if key not in found]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError("it is torn, or no JSON") from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with files.archive(path) as stored:
        return {name: stored[name] for name in stored.files}


def arrays(results: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of results, `outer/inner` for what is nested; a name itself is `escaped`.

    Raises:
        TypeError: a result that is neither numbers nor text.
    """
    for key, value in results.items():
        name = f"{prefix}{escaped(str(key))}"
        if name in NON_NUMERIC_KEYS:
            continue
        if isinstance(value, Mapping):
            yield from arrays(value, f"{name}/")
            continue
        array = np.asarray(value)
        if array.dtype == object:
            kind = type(value).__name__
            raise TypeError(f"result {plain(name)!r} must be numbers or text, got {kind}")
        yield name, array


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dictionaries of what `outer/inner` names, the inverse of `arrays`.

    Example:
        >>> from truncgauss.runs import completed
        >>> completed.nested({"a": 1, "fit/loss": 2, "fit/steps": 3})
        {'a': 1, 'fit': {'loss': 2, 'steps': 3}}
    """
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = map(plain, name.split("/"))
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def escaped(name: str) -> str:
    """A name without what separates names, or ends them, in an archive of arrays: percent-encoded
    are a slash, a zero byte, an ending `.npy`, and a percent sign that could be read as one of
    these.

    Example:
        >>> from truncgauss.runs import completed
        >>> completed.escaped("Lead (ug/L), 95 %")
        'Lead (ug%2FL), 95 %'
    """
    return re.sub(rf"[/\0]|\.(?=npy$)|%(?={CODES})", lambda found: f"%{ord(found[0]):02X}", name)


def plain(name: str) -> str:
    """The inverse of `escaped`; of names that nest, as they are shown to readers."""
    return re.sub(f"%({CODES})", lambda found: chr(int(found[1], 16)), name)


def as_stored(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results as they are read back: arrays and dictionaries, so that a figure can be redrawn."""
    kept = {key: results[key] for key in NON_NUMERIC_KEYS if key in results}
    return nested(dict(arrays(results))) | kept


def listed(runs: Path) -> list[str]:
    """A line for each run in a folder of runs, the oldest first: name, state, seconds, summary.

    Raises:
        ValueError: there is no such folder.
    """
    if not runs.is_dir():
        raise ValueError(f"no such folder (got {runs})")
    rows = []
    for folder in sorted(path for path in runs.iterdir() if (path / "config.yaml").is_file()):
        if folder.suffix == PARTIAL:
            rows.append((folder.name, "unfinished", "", f"truncgauss run --resume {folder}"))
            continue
        if is_sweep(folder):
            done = len(list(folder.glob("[0-9]*/summary.json")))
            rows.append((folder.name, "sweep", "", f"{done} complete runs"))
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
    return table(rows)


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds the runs of a sweep."""
    config = folder / "config.yaml"
    lines = config.read_text("utf-8").splitlines() if config.is_file() else []
    return any(line.startswith("sweep:") for line in lines)


def compared(first: CompletedRun, second: CompletedRun, columns: Sequence[str] = ()) -> list[str]:
    """What differs between two runs: every scalar of the results beside its twin, and settings.

    Args:
        first, second: the runs.
        columns: patterns of the results to show, as for `chosen`; by default those that differ.

    Raises:
        ValueError: no result has a name of these.
    """
    pair = first.summary["values"], second.summary["values"]
    names = ordered(pair)
    same = 0 if columns else sum(not _differs(name, pair) for name in names)
    shown_ones = chosen(names, columns) if columns else [n for n in names if _differs(n, pair)]
    header = ("", first.folder.name, second.folder.name, "difference")
    rows = table([header, *(_beside(name, *pair) for name in shown_ones)])
    old, new = (re.sub("(?m)^#.*\n", "", run.config).splitlines() for run in (first, second))
    lines = [f"- {line}" for line in old if line not in new]
    lines += [f"+ {line}" for line in new if line not in old]
    return [
        *rows,
        *([f"results that are the same: {same}"] if same else []),
        *(["settings:", *lines] if lines else ["the same settings"]),
    ]


def ordered(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the results of runs: those that differ, those that do not, and then times, which
    always do.

    Example:
        >>> from truncgauss.runs import completed
        >>> completed.ordered([{"seconds": 1.5, "n": 3, "loss": 0.5}, {"n": 3, "loss": 0.25}])
        ['loss', 'n', 'seconds']
    """
    names = dict.fromkeys(name for run in runs for name in run)
    return sorted(names, key=lambda name: ("seconds" in name, not _differs(name, runs)))


def _differs(name: str, runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a result is another one in some run than in the next, or missing there."""
    missing = any(name not in run for run in runs if run)
    return missing or len({str(run[name]) for run in runs if run}) > 1


def chosen(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that patterns such as `fit/*` describe, in the order of the patterns.

    Raises:
        ValueError: a pattern that describes none.
    """
    found = {pattern: fnmatch.filter(names, pattern) for pattern in patterns}
    for pattern, several in found.items():
        if not several:
            raise ValueError(f"no result is called {pattern}; there are: {', '.join(names)}")
    return list(dict.fromkeys(name for several in found.values() for name in several))


def _beside(name: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[str, ...]:
    values = one.get(name, ""), two.get(name, "")
    number = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
    gap = f"{values[1] - values[0]:+.3g}" if number else "" if values[0] == values[1] else "differs"
    return name, *(shown(value) for value in values), gap


def shown(value: Any) -> str:
    """A value of a summary in at most six digits.

    Example:
        >>> from truncgauss.runs import completed
        >>> completed.shown(1 / 3)
        '0.333333'
    """
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with the columns of the rows below each other, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]
