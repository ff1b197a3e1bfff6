"""One page of HTML about a complete run, which needs no other file and no network."""

import base64
import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.completed_runs import CompletedRun, arrays, shown

LARGEST_SVG = 2**21  # bytes of a drawing above which the pixels are shown instead
FEW = 16  # entries of an array that are all printed
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --rule: #bbb; --faint: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --paper: #16181b; --rule: #555; --faint: #a5a5a5; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.about { color: var(--faint); margin-top: 0.2rem; }
p.failed, p.warning { border-left: 4px solid #c0392b; padding-left: 0.7rem; }
img { max-width: 100%; background: #fff; }
div.wide { overflow-x: auto; }
pre { overflow-x: auto; font-size: 0.85rem; border: 1px solid var(--rule); padding: 0.6rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.15rem 1rem 0.15rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: anywhere; }
svg.line { width: 10rem; height: 2rem; } svg.line polyline { fill: none; stroke: var(--ink); }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } }
"""


def write(run: CompletedRun) -> Path:
    """Write report.html into the folder of a run, and return its path."""
    path = run.folder / "report.html"
    path.write_text(page(run), "utf-8")
    return path


def page(run: CompletedRun) -> str:
    """The report: summary, figure, estimates, curves, warnings, settings and provenance."""
    made, reason = run.provenance, run.summary["reason"]
    facts = [made.get("started", ""), f"{made['seconds']} s" if "seconds" in made else ""]
    about = " · ".join([run.summary["status"], *filter(None, map(str, facts))])
    failed = f'<p class="failed">failed: {escape(reason)}</p>' if reason else ""
    body = [
        f"<h1>{escape(run.experiment)}</h1>",
        f'<p class="about">{escape(about)}</p>',
        failed,
        *(f'<p class="warning">{escape(text)}</p>' for text in made.get("warnings", ())),
        _text("\n".join(run.summary["summary"])),
        _figure(run),
        "<h2>Results</h2>",
        _table(("name", "value"), _values(run)),
        *_curves(run),
        "<h2>Settings</h2>",
        _text(run.config),
        "<h2>Provenance</h2>",
        _table(("", ""), _facts(made)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(run.experiment)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""


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
    return f'<p><img alt="{label}" src="data:image/{kind};base64,{data}"></p>'


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, str]]) -> str:
    """Rows of (text, HTML)."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in rows)
    head = "".join(f"<th>{escape(word)}</th>" for word in header) if any(header) else ""
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if head else ""}{cells}</table></div>'


def _values(run: CompletedRun) -> Iterator[tuple[str, str]]:
    """Scalars, and arrays of few entries; of others the shape and range."""
    for name, array in arrays(run.results):
        if array.ndim == 0:
            value = escape(shown(array.item()))
        elif array.size <= FEW:
            value = "<br>".join(escape(_row(row)) for row in np.atleast_2d(array))
        else:
            value = escape(_extent(array))
        yield name.replace("/", " / "), value


def _row(row: np.ndarray) -> str:
    return ", ".join(shown(entry) for entry in row.reshape(-1).tolist())


def _extent(array: np.ndarray) -> str:
    shape = " × ".join(map(str, array.shape))
    if array.dtype.kind not in "fiu":
        return shape
    finite = array[np.isfinite(array)]
    missing = array.size - finite.size
    extent = f", {finite.min():.6g} to {finite.max():.6g}" if finite.size else ""
    return f"{shape}{extent}" + (f", {missing} not finite" if missing else "")


def _curves(run: CompletedRun) -> Iterator[str]:
    """A small curve of each longer sequence of numbers, such as the trace of a fit."""
    found = [
        (name.replace("/", " / "), _line(array.astype(float)))
        for name, array in arrays(run.results)
        if array.ndim == 1 and array.size > FEW and array.dtype.kind in "fiu"
    ]
    metrics = run.results.get("metrics") or []
    for name in dict.fromkeys(name for row in metrics for name in row):
        column = [_number(row.get(name)) for row in metrics]
        if len(column) > 1 and None not in column:
            found.append((f"metrics / {name}", _line(np.array(column, float))))
    if found:
        yield "<h2>Curves</h2>"
        yield _table(("name", "by index"), iter(found))


def _number(cell: Any) -> float | None:
    """A cell of metrics.jsonl as a number, nan if it is not there; None for text."""
    try:
        return math.nan if cell is None else float(cell)
    except ValueError:
        return None


def _line(values: np.ndarray) -> str:
    """The values against their index; where one is not finite the line is broken."""
    finite = np.isfinite(values)
    if not finite.any():
        return "no finite value"
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
    return f"{drawn} {escape(_extent(values))}"


def _facts(made: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in made.items():
        if name == "warnings":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list):
            value = (" " if name == "command" else ", ").join(map(str, value))
        yield name, escape(str(value))
