"""Builds the sdist and the wheel, and tries the wheel from an empty environment: `make release`.

    python .ci/release.py dist VERSION=PYTHON ...

The sdist holds every file of the repository, and the wheel that is built from it is, byte for byte,
the one from the repository. With each PYTHON an environment that has nothing but the wheel and what
it depends on fits a sample, writes a config and runs it, in an empty folder. `dist/recipe.yaml` is
the recipe for conda-forge of this sdist.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPE = ROOT / ".github" / "conda" / "recipe.yaml"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")  # wanted; those that are not here are said
CONDA_NAMES = {"matplotlib": "matplotlib-base"}  # without a toolkit of windows
FIT = """
import numpy as np, truncgauss as tg

height = np.random.default_rng(3).normal(178.0, 7.0, 900)
seen = height[height > 170.0]
fit = tg.fit_regression(seen, {"mean": np.ones(len(seen))}, truncated_low=170.0)
print(fit)
assert fit.converged and abs(fit.estimates[0] - 178.4) < 0.1
"""


def call(*words: str | os.PathLike[str], folder: pathlib.Path = ROOT) -> str:
    """What a command prints, its mistakes among it."""
    done = subprocess.run(
        [os.fspath(word) for word in words], cwd=folder, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.exit(
            f"release: {' '.join(map(str, words))} ended with {done.returncode}\n{done.stdout}"
        )
    return done.stdout


def built(dist: pathlib.Path, work: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The sdist and the wheel, by the tool that pyproject.toml names."""
    for old in dist.glob("truncgauss-*"):
        old.unlink()
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    call(sys.executable, "-m", "pip", "install", "--quiet", "--target", work / "tools", *tools)
    code = f"import sys; sys.path.insert(0, {str(work / 'tools')!r}); "
    code += "from hatchling.cli import hatchling; sys.exit(hatchling())"
    call(sys.executable, "-c", code, "build", "--directory", dist)
    [sdist], [wheel] = dist.glob("truncgauss-*.tar.gz"), dist.glob("truncgauss-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    [tree] = work.glob("truncgauss-*")
    call(sys.executable, "-c", code, "build", "--target", "wheel", "--directory", work, folder=tree)
    [again] = work.glob("truncgauss-*.whl")
    if again.read_bytes() != wheel.read_bytes():
        sys.exit("release: the sdist builds another wheel than the repository")
    check_contents(tree, wheel)
    return sdist, wheel


def check_contents(tree: pathlib.Path, wheel: pathlib.Path) -> None:
    """All of the repository in the sdist; in the wheel the package with its experiments."""
    names = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    if (ROOT / ".git").exists():
        tracked = set(call("git", "ls-files").splitlines())
        if missing := sorted(name for name in tracked - names if (ROOT / name).exists()):
            sys.exit(f"release: not in the sdist: {', '.join(missing)}")
    rooms = ("truncgauss/", "experiments/", "configs/")
    inside = {
        "truncgauss/" + name.removeprefix("truncgauss/") for name in names if name.startswith(rooms)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    if packed != inside:
        sys.exit(f"release: the wheel differs from the package in {sorted(packed ^ inside)}")


def recipe(sdist: pathlib.Path) -> str:
    """The recipe for conda-forge: version, digest and dependencies put in their places."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    split = [re.fullmatch(r"([\w.-]+)(.*)", want).groups() for want in project["dependencies"]]
    run = "\n".join(f"    - {CONDA_NAMES.get(name, name)} {bounds}" for name, bounds in split)
    values = {
        "@VERSION@": sdist.name.removeprefix("truncgauss-").removesuffix(".tar.gz"),
        "@SHA256@": hashlib.sha256(sdist.read_bytes()).hexdigest(),
        "@PYTHON@": project["requires-python"].removeprefix(">="),
        "    - @RUN@": run,
    }
    text = RECIPE.read_text()
    for key, value in values.items():
        text = text.replace(key, value)
    return text


def tried(python: str, wheel: pathlib.Path, folder: pathlib.Path) -> str:
    """The JAX that an empty environment of a Python gets, in which the wheel does its work."""
    pins = folder / "pins.txt"  # all but JAX, of which each Python gets the newest
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    pins.write_text("".join(x for x in lines if not re.match("jax(lib)?==", x)))
    call(python, "-m", "venv", "--without-pip", folder / "env")
    scripts = folder / "env" / "bin"
    install = ("install", "--quiet", "--no-compile", "--constraint", pins, wheel)
    call(sys.executable, "-m", "pip", "--python", scripts / "python", *install)
    (empty := folder / "empty").mkdir()
    for words in (["--version"], ["new", "tobin"], ["run", "tobin.yaml"]):
        call(scripts / "truncgauss", *words, folder=empty)
    call(scripts / "python", "-c", FIT, folder=empty)
    return call(scripts / "python", "-c", "import jax; print(jax.__version__)").strip()


def report(version: str, python: str, wheel: pathlib.Path) -> str:
    """A line on the wheel and a Python, which need not be on this machine."""
    if not python:
        return f"Python {version}: not here"
    with tempfile.TemporaryDirectory() as folder:
        jax = tried(python, wheel, pathlib.Path(folder))
    return f"Python {version}, jax {jax}: the wheel installs into nothing and runs"


def main(dist: pathlib.Path, pythons: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = built(dist, pathlib.Path(folder))
    (dist / "recipe.yaml").write_text(recipe(sdist))
    print(f"{sdist.name} holds the repository and builds {wheel.name}", flush=True)
    versions = dict.fromkeys(VERSIONS, "") | pythons
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = [pool.submit(report, *item, wheel) for item in sorted(versions.items())]
        for line in reports:
            print(line.result(), flush=True)


if __name__ == "__main__":
    folder, *pairs = sys.argv[1:]
    main(pathlib.Path(folder).resolve(), dict(pair.split("=", 1) for pair in pairs))
