"""One page of HTML about a complete run, which needs no other file and no network."""

import base64
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.execution import files
from truncgauss.runs.folder import CompletedRun
from truncgauss.runs.results import arrays, plain, shown

LARGEST_SVG = 2**21  # bytes of a drawing above which the pixels are shown instead
STDERR = ".stderr"  # ends the name of a standard error
ARRAYS = ("names", "estimates", "stderr")
INTERVALS = "intervals"  # of these estimates, a text each
BY_NAME = "by_name/"  # the same numbers again, as scalars for summary.json
FEW = 16  # entries of an array that are all printed
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --rule: #ccc; --faint: #595959; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --paper: #16181b; --rule: #4a4d52; --faint: #a5a5a5; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.about { color: var(--faint); margin-top: 0.2rem; }
p.failed, p.warning { border-left: 4px solid #c0392b; padding-left: 0.7rem; }
p.said { margin: 0.4rem 0; overflow-wrap: break-word; }
div.wide { overflow-x: auto; }
img { width: 100%; min-width: 36rem; background: #fff; margin-top: 1rem; }
@media (max-width: 36rem) { svg.line { width: 6rem !important; } }
pre { overflow-x: auto; font-size: 0.85rem; border: 1px solid var(--rule); padding: 0.6rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.15rem 1.2rem 0.15rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: break-word; }
td { overflow-wrap: anywhere; min-width: 6rem; } tr.head th { color: var(--faint); }
th { font-weight: 500; }
a { color: inherit; }
svg.line { width: 10rem; height: 2rem; display: block; }
svg.line polyline { fill: none; stroke: var(--ink); }
@media print {
  :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 11pt; }
  pre { white-space: pre-wrap; } div.wide { overflow: visible; } img { min-width: 0; }
  h2 { break-after: avoid; } tr, img, pre, p { break-inside: avoid; }
}
"""


def write(run: CompletedRun) -> Path:
    """Write report.html into the folder of a run, and return its path."""
    path = run.folder / "report.html"
    files.write(path, page(run))
    return path


def page(run: CompletedRun) -> str:
    """The report: summary, figure, estimates, curves, warnings, settings and provenance."""
    made, reason = run.provenance, run.summary["reason"]
    started = str(made.get("started", "")).replace("T", " ").replace("+00:00", " UTC")
    facts = [started, f"{made['seconds']} s" if "seconds" in made else ""]
    about = " · ".join([run.summary["status"], *filter(None, facts)])
    failed = f'<p class="failed">failed: {escape(reason)}</p>' if reason else ""
    body = [
        f"<h1>{escape(run.experiment)}</h1>",
        f'<p class="about">{escape(about)}</p>',
        failed,
        *(f'<p class="warning">{escape(text)}</p>' for text in made.get("warnings", ())),
        *_said(run.summary["summary"]),
        _figure(run),
        _section("Estimates", _heads(run), _estimates(run)),
        _section("Results", ("name", "value"), _values(run)),
        _section("Curves", ("name", "by index", "values"), _curves(run)),
        "<h2>Settings</h2>",
        _text(run.config),
        _section("Provenance", (), _facts(made)),
    ]
    return _document(run.experiment, body)


def _document(title: str, body: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def sweep_page(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table of a sweep; the first cell of a row names the folder of its run."""
    cells = (
        "".join(f"<td>{escape(cell)}</td>" for cell in others)
        for others in (row[1:] for row in rows)
    )
    body = "".join(
        f'<tr><th><a href="{escape(row[0])}/report.html">{escape(row[0])}</a></th>{rest}</tr>'
        for row, rest in zip(rows, cells)
    )
    head = "".join(f"<th>{_name(name)}</th>" for name in names)
    table = f'<div class="wide"><table><tr class="head">{head}</tr>{body}</table></div>'
    return _document(title, [f"<h1>{escape(title)}</h1>", table])


def _text(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""


def _said(lines: Sequence[str]) -> Iterator[str]:
    """The summary: sentences, which a narrow page wraps, and rows of columns, which it must not."""
    for columns, group in itertools.groupby(lines, lambda line: "  " in line):
        if columns:
            yield _text("\n".join(group))
        else:
            yield from (f'<p class="said">{escape(line)}</p>' for line in group if line)


def _figure(run: CompletedRun) -> str:
    """The figure within the page, as a drawing unless that is too large."""
    drawing, pixels = (run.folder / f"{run.experiment}.{end}" for end in ("svg", "png"))
    if drawing.is_file() and drawing.stat().st_size <= LARGEST_SVG:
        path, kind = drawing, "svg+xml"
    elif pixels.is_file():
        path, kind = pixels, "png"
    else:
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    label = escape(f"The figure of {run.experiment}")
    return f'<div class="wide"><img alt="{label}" src="data:image/{kind};base64,{data}"></div>'


def _section(title: str, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A heading and a table; each row is a name and the HTML of its cells. Empty without rows."""
    cells = "".join(
        f"<tr><th>{_name(name)}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
        for name, *values in rows
    )
    words = "".join(f"<th>{escape(word)}</th>" for word in header)
    head = f'<tr class="head">{words}</tr>' if words else ""
    table = f'<div class="wide"><table>{head}{cells}</table></div>'
    return f"<h2>{escape(title)}</h2>\n{table}" if cells else ""


def _name(name: str) -> str:
    """A name that breaks where its parts meet."""
    return re.sub(r"([_\[/.])", r"\1<wbr>", escape(name))


def _path(name: str) -> str:
    """A name of nested results as it is shown, such as "fit / loss"."""
    return plain(name.replace("/", " / "))


def _columns(run: CompletedRun) -> list[list[Any]]:
    """The arrays `names`, `estimates`, `stderr`, and `intervals` if there are some: lists of one
    length, or none."""
    found = {name: np.asarray(run.results[name]) for name in ARRAYS if name in run.results}
    if len(found) == len(ARRAYS) and INTERVALS in run.results:
        found[INTERVALS] = np.asarray(run.results[INTERVALS])
    columns = [array.reshape(-1).tolist() for array in found.values()]
    return columns if len(found) >= len(ARRAYS) and len(set(map(len, columns))) == 1 else []


def _heads(run: CompletedRun) -> tuple[str, ...]:
    more = ("95 % interval",) if len(_columns(run)) > len(ARRAYS) else ()
    return ("", "estimate", "standard error", *more)


def _estimates(run: CompletedRun) -> Iterator[tuple[str, ...]]:
    """The columns of estimates; where there are none, the scalars `NAME` that have a standard error
    `NAME.stderr` beside them."""
    found = dict(arrays(run.results))
    rows: list[tuple[Any, ...]] = [
        (plain(name.rsplit("/", 1)[-1]), array.item(), found[f"{name}{STDERR}"].item())
        for name, array in found.items()
        if array.ndim == 0 and f"{name}{STDERR}" in found
    ]
    for name, *values in list(zip(*_columns(run))) or rows:
        yield str(name), *(escape(shown(value)) for value in values)


def _values(run: CompletedRun) -> Iterator[tuple[str, ...]]:
    """Other scalars, and arrays of few entries; of others the shape and range."""
    found = dict(arrays(run.results))
    listed = (*ARRAYS, INTERVALS) if _columns(run) else ()
    for name, array in found.items():
        scalar = array.ndim == 0 and f"{name.removesuffix(STDERR)}{STDERR}" in found
        if name in listed or (name.startswith(BY_NAME) if listed else scalar):
            continue
        if array.ndim == 0:
            value = escape(shown(array.item()))
        elif array.size <= FEW:
            value = "<br>".join(escape(_row(row)) for row in np.atleast_2d(array))
        else:
            value = escape(_extent(array))
        yield _path(name), value


def _row(row: np.ndarray) -> str:
    return ", ".join(shown(entry) for entry in row.reshape(-1).tolist())


def _extent(array: np.ndarray) -> str:
    shape = " × ".join(map(str, array.shape)) + " values"
    if array.dtype.kind not in "fiu":
        return shape
    finite = array[np.isfinite(array)]
    missing = array.size - finite.size
    low, high = (f"{end:.6g}" for end in (finite.min(), finite.max())) if finite.size else ("", "")
    extent = f", all {low}" if low == high != "" and not missing else f", {low} to {high}"
    extent = extent if finite.size else ""
    return f"{shape}{extent}" + (f", {missing} not finite" if missing else "")


def _curves(run: CompletedRun) -> Iterator[tuple[str, ...]]:
    """A small curve of each longer sequence of numbers, such as the trace of a fit."""
    for name, array in arrays(run.results):
        if array.ndim == 1 and array.size > FEW and array.dtype.kind in "fiu":
            yield _path(name), *_line(array.astype(float))
    metrics = run.results.get("metrics") or []
    for name in dict.fromkeys(name for row in metrics for name in row):
        column = [_number(row.get(name)) for row in metrics]
        if len(column) > 1 and None not in column:
            yield f"metrics / {name}", *_line(np.array(column, float))


def _number(cell: Any) -> float | None:
    """A cell of metrics.jsonl as a number, nan if it is not there; None for text."""
    try:
        return math.nan if cell is None else float(cell)
    except ValueError:
        return None


def _line(values: np.ndarray) -> tuple[str, str]:
    """The values against their index, broken where one is not finite; and their range."""
    finite = np.isfinite(values)
    if not finite.any():
        return "", "no finite value"
    low, high = values[finite].min(), values[finite].max()
    x = np.linspace(1, 159, len(values))
    y = 30 - 28 * (values - low) / (high - low) if high > low else np.full(len(values), 16.0)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], finite, [False]]).astype(int)))
    lines = "".join(
        '<polyline points="{}"/>'.format(
            " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[begin:end], y[begin:end]))
        )
        for begin, end in zip(ends[::2], ends[1::2])
    )
    drawn = f'<svg class="line" viewBox="0 0 160 32" role="img">{lines}</svg>'
    return drawn, escape(_extent(values))


def _facts(made: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in made.items():
        if name == "warnings":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = (" " if name == "command" else ", ").join(map(str, value))
        yield name, escape(str(value))
