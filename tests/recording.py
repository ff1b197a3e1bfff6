"""Results of calls as JSON, and how much two of them differ."""

import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

FILE = pathlib.Path(__file__).with_name("numbers.json")
# An array of more numbers is recorded by its first ones, its sum and one projection.
MOST = 40
FIRST = 6

# How far an array may move, relative to its largest magnitude. One evaluation of a formula:
EVALUATED = 1e-10
# The end of an iteration: another order of additions moves where the last step ends.
ITERATED = 1e-8
# Standard errors of an estimate, of replicates that nearly agree, or of an inverse Hessian.
ERRORS = 1e-7
# The same in float32: replicates agree to a thousandth and log weights are rounded to 1e-7, which
# moves by as much as 4e-5 with the order in which a compiler adds.
ERRORS_OF_SINGLE = 2e-4
# Formulas in float32, and ends of profiles: a root of a function that is itself a maximum.
SINGLE = 2e-6
# Below this a standard error is rounding, and 0 as good as any other value.
ROUNDING = 1e-13


class Call(NamedTuple):
    """A call of the public interface, without arguments, and the tolerance of its numbers."""

    function: Callable[[], Any]
    tolerance: float


CALLS: dict[str, Call] = {}


def call(name: str, tolerance: float = EVALUATED) -> Callable[[Callable[[], Any]], Any]:
    """Enter a function among the recorded calls."""

    def entered(function: Callable[[], Any]) -> Callable[[], Any]:
        # A module may be imported under two names, by pytest and by another module.
        again = CALLS[name].function if name in CALLS else function
        assert again.__code__.co_filename == function.__code__.co_filename, name
        assert again.__code__.co_firstlineno == function.__code__.co_firstlineno, name
        CALLS[name] = Call(function, tolerance)
        return function

    return entered


def result(name: str) -> Any:
    """The result of a call in the form of JSON."""
    return json.loads(json.dumps(as_json(CALLS[name].function())))


def refusal(function: Callable[[], Any]) -> dict[str, str]:
    """The type and the text of the error that a call must raise."""
    try:
        found = function()
    except Exception as error:
        # Of a number with many digits the last ones are rounding.
        short = re.sub(r"-?\d+\.\d{9,}", lambda digits: f"{float(digits[0]):.8g}", str(error))
        return {"raises": type(error).__name__, "message": short}
    raise AssertionError(f"no error was raised, but this returned: {found!r}")


def as_json(value: Any) -> Any:
    """Texts, flags, numbers, lists and dictionaries that stand for a result."""
    if isinstance(value, str):  # how far from 0 a remainder of rounding is says nothing
        return re.sub(r"-?\b\d(\.\d+)?e-(0[5-9]|[1-9]\d+)\b|\b0\.0e\+00\b", "tiny", value)
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "_asdict"):
        return as_json(value._asdict())
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not all(isinstance(item, float) for item in value):
        return [as_json(item) for item in value]
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return array.tolist()
    if array.size > MOST:
        wide = array.astype(float)
        return {
            "shape": list(array.shape),
            "first": as_json(wide.ravel()[:FIRST]),
            "sum": as_json(wide.sum()),
            "projection": as_json((wide.ravel() * np.cos(np.arange(wide.size))).sum()),
        }
    return _numbers(array.tolist())


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


def differences(
    recorded: Any, found: Any, tolerance: float, path: str = "", floor: float = 0.0
) -> list[str]:
    """What differs between two results, one line for each array or text."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        lines = []
        for key in recorded | found:
            if key not in recorded or key not in found:
                lines.append(f"{path}.{key}: only {'found' if key in found else 'recorded'}")
            else:
                is_error = any(word in key for word in ("stderr", "error", "parameter_covariance"))
                errors = ERRORS_OF_SINGLE if tolerance >= SINGLE else ERRORS
                limits = (max(tolerance, errors), ROUNDING) if is_error else (tolerance, floor)
                lines += differences(
                    recorded[key], found[key], limits[0], f"{path}.{key}", limits[1]
                )
        return lines
    here, there = _array(recorded), _array(found)
    if here is None or there is None:
        if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
            pairs = enumerate(zip(recorded, found))
            parts = [differences(*pair, tolerance, f"{path}[{i}]", floor) for i, pair in pairs]
            return [line for part in parts for line in part]
        if _same_text(recorded, found):
            return []
        return [f"{path}: {recorded!r} was recorded, now {found!r}"]
    return _numbers_differ(here, there, tolerance, path, floor)


STEPS = re.compile(r"(?<=after )\d+(?= steps?\b)")


def _same_text(recorded: Any, found: Any) -> bool:
    """Whether two texts are equal, but for one step more or less: where the steps of a fit have
    settled, rounding decides whether there is a last one."""
    if not isinstance(recorded, str) or not isinstance(found, str):
        return bool(recorded == found)
    pairs = zip(STEPS.findall(recorded), STEPS.findall(found))
    near = all(abs(int(one) - int(other)) <= 1 for one, other in pairs)
    return near and STEPS.sub("N", recorded) == STEPS.sub("N", found)


def _array(value: Any) -> np.ndarray | None:
    """Numbers as an array; None for texts, flags and what mixes them."""
    if isinstance(value, str):
        value = float(value) if value in ("inf", "-inf", "nan") else None
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return None
    try:
        array = np.array(value, dtype=float)  # reads the texts of what is not finite, too
    except (TypeError, ValueError):
        return None
    return array if array.size else None


def _numbers_differ(
    recorded: np.ndarray, found: np.ndarray, tolerance: float, path: str, floor: float
) -> list[str]:
    if recorded.shape != found.shape:
        return [f"{path}: shape {recorded.shape} was recorded, now {found.shape}"]
    finite = np.isfinite(recorded)
    if not np.array_equal(recorded[~finite], found[~finite], equal_nan=True):
        return [f"{path}: {recorded.tolist()} was recorded, now {found.tolist()}"]
    size = np.max(np.abs(recorded[finite]), initial=0.0)
    gap = np.abs(recorded[finite] - found[finite])
    if np.all(gap <= tolerance * size + floor):  # NaN where a number was is a difference
        return []
    largest = np.max(gap)
    return [
        f"{path}: moved by {largest:.3g}, {largest / max(size, 1e-300):.2g} of its largest "
        f"magnitude (tolerance {tolerance:g}): {recorded.tolist()} was recorded, now "
        f"{found.tolist()}"
    ]


def recorded() -> dict[str, Any]:
    """The recorded results, by the names of their calls."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def write(results: dict[str, Any]) -> None:
    """Write results in the order of the calls, each part of a result on a line."""
    lines = []
    for name in CALLS:
        if name in results:
            lines.append(f"{json.dumps(name, ensure_ascii=False)}: {_written(results[name])}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _written(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    parts = [f"  {json.dumps(key)}: {json.dumps(value[key], ensure_ascii=False)}" for key in value]
    return "{\n" + ",\n".join(parts) + "\n}"


def record(names: list[str]) -> None:
    """Record the named calls anew, or all, and say what changed by how much."""
    before = recorded()
    unknown = [name for name in names if name not in CALLS]
    if unknown:
        raise SystemExit(f"no call is named {', '.join(unknown)}")
    results = {name: value for name, value in before.items() if name in CALLS}
    for name in sorted(set(before) - set(CALLS)):
        print(f"{name}: no longer a call, removed")
    for name in names or CALLS:
        found = result(name)
        if name not in before:
            print(f"{name}: new")
        else:
            for line in differences(before[name], found, 0.0):
                print(f"{name}{line}")
        results[name] = found
        write(results)


def main(words: list[str]) -> None:
    """`--record [NAME ...]` or `--missing`, the command line of the recorded calls."""
    if words == ["--missing"]:
        words = ["--record", *(name for name in CALLS if name not in recorded())]
        if len(words) == 1:
            raise SystemExit("every call is recorded")
    if words[:1] != ["--record"]:
        raise SystemExit("usage: python -m tests.recorded_calls --record [NAME ...] | --missing")
    record(words[1:])
