"""Results of an experiment: its arrays by name, its scalars, and how it ended."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

NON_NUMERIC_KEYS = ("summary", "metrics", "failed")
"""Keys of a result that are kept apart from its numbers."""
CODES = "00|25|2E|2F"  # of zero byte, percent sign, full stop and slash


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
        >>> from truncgauss.runs import results
        >>> results.nested({"a": 1, "fit/loss": 2, "fit/steps": 3})
        {'a': 1, 'fit': {'loss': 2, 'steps': 3}}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = map(plain, name.split("/"))
        inner = nested
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return nested


def escaped(name: str) -> str:
    """A name without what separates names, or ends them, in an archive of arrays: percent-encoded
    are a slash, a zero byte, an ending `.npy`, and a percent sign that could be read as one of
    these.

    Example:
        >>> from truncgauss.runs import results
        >>> results.escaped("Lead (ug/L), 95 %")
        'Lead (ug%2FL), 95 %'
    """
    return re.sub(rf"[/\0]|\.(?=npy$)|%(?={CODES})", lambda match: f"%{ord(match[0]):02X}", name)


def plain(name: str) -> str:
    """The inverse of `escaped`; of names that nest, as they are shown to readers."""
    return re.sub(f"%({CODES})", lambda match: chr(int(match[1], 16)), name)


def as_stored(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results as they are read back: arrays and dictionaries, so that a figure can be redrawn."""
    kept = {key: results[key] for key in NON_NUMERIC_KEYS if key in results}
    return nested(dict(arrays(results))) | kept


def outcome(results: Mapping[str, Any]) -> dict[str, Any]:
    """The end of a run: status, reason, the lines of the summary, every scalar by name.

    Example:
        >>> from truncgauss.runs import results
        >>> results.outcome({"fit": {"loss": 0.5}, "summary": ["all well"]})["values"]
        {'fit/loss': 0.5}
    """
    failed, lines = str(results.get("failed") or ""), results.get("summary", ())
    lines = [lines] if isinstance(lines, str) else lines
    scalars: dict[str, Any] = {}
    for key, array in arrays(results):
        if array.ndim == 0:
            scalars[key if plain(key) in scalars else plain(key)] = array
    return {
        "status": "failed" if failed else "finished",
        "reason": failed,
        "summary": [str(line) for line in lines],
        "values": jsonable(scalars),
    }


def jsonable(value: Any) -> Any:
    """JSON's types; what JSON cannot say, nan and the infinities, as text that float() reads."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)
