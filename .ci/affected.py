"""The tests that a change of a file is most likely to break: `python .ci/affected.py FILE`.

Of each file of tests, the share of its references (imported names and `tg.name`) that lead to FILE.
One to a module that imports FILE counts one over the number of modules which that one imports; a
name that has the word of FILE, as `test_exact_polygons` has that of `polygon.py`, adds a half.
Printed are FILE, whose examples run too, and of the four largest shares those above a fifth of the
largest. A file of tests stands for itself; an experiment's tests are those that say its name.
"""

import ast
import collections
import functools
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
LEAST, MOST = 0.2, 4
References = collections.Counter[pathlib.Path | str]


@functools.cache
def imported(path: pathlib.Path) -> dict[str, str]:
    """Dotted names by the names under which a file imports them."""
    names = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {x.asname: x.name for x in node.names if x.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
    return names


def definition(name: str) -> pathlib.Path | None:
    """The file that defines a dotted name, through the packages that only pass it on."""
    import truncgauss

    parts = name.split(".")
    if parts[0] == "truncgauss" and len(parts) > 1:
        home = truncgauss._MODULES.get(parts[1]) or truncgauss._HOME_OF.get(parts[1], "")
        public = home.split(".") + [parts[1]] * (parts[1] in truncgauss._HOME_OF)
        parts = [*public, *parts[2:]] if home else parts
    for size in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:size])
        if base.with_suffix(".py").exists():
            return base.with_suffix(".py")
        if (package := base / "__init__.py").exists():
            stub = package.with_suffix(".pyi")  # with the names that the package shows
            passed = imported(stub if stub.exists() else package).get(
                parts[size] if size < len(parts) else ""
            )
            return definition(passed) if passed and passed != name else package
    return None


@functools.cache
def references(path: pathlib.Path) -> References:
    """How often a file refers to each file of the project, and the texts in it."""
    found, inner, names = References(), set(), imported(path)
    for node in ast.walk(ast.parse(path.read_text())):  # the outermost part of a.b.c comes first
        if isinstance(node, ast.Attribute):
            inner.add(id(node.value))
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            first, _, rest = ast.unparse(node).partition(".")
            if target := first in names and definition(f"{names[first]}.{rest}".strip(".")):
                found[target] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found[node.value] += 1
    return found


def share(test: pathlib.Path, file: pathlib.Path) -> float:
    """The part of a test's references to the project that leads to a file."""
    counts = {path: n for path, n in references(test).items() if isinstance(path, pathlib.Path)}
    total = max(sum(counts.values()), 1)
    subject = file.parent.name if "experiments" in file.parts else file.stem
    words, wanted = (
        {word.rstrip("s") for word in text.split("_")} for text in (test.stem, subject)
    )
    near = 0.5 * total * (words >= wanted)
    near += references(test)[subject] if "experiments" in file.parts else 0
    for path, count in counts.items():
        modules = {definition(name) for name in imported(path).values()} - {None}
        near += count if path == file else count * (file in modules) / max(len(modules), 1)
    return near / total


def affected(file: pathlib.Path) -> list[pathlib.Path]:
    """The files to be given to pytest, the nearest first."""
    if file.name.startswith("test_"):
        return [file]
    shares = {test: share(test, file) for test in sorted((ROOT / "tests").glob("test_*.py"))}
    ranked = sorted(shares, key=shares.__getitem__, reverse=True)[:MOST]
    near = [test for test in ranked if shares[test] > LEAST * shares[ranked[0]]]
    return [file] * (ROOT / "truncgauss" in file.parents) + near


if __name__ == "__main__":
    [given] = sys.argv[1:] or [""]
    if not (path := (ROOT / given).resolve()).is_file() or path.suffix != ".py":
        sys.exit(f"affected.py: expected a Python file of this project, got {given!r}.")
    print(*(test.relative_to(ROOT) for test in affected(path)))
