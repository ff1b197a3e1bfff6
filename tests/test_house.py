"""The house stands: floors, doors, names and sizes, read off the syntax trees."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "truncgauss"
MODULES = sorted(PACKAGE.rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.py"))
TESTS = sorted((ROOT / "tests").glob("*.py"))

# A module imports from lower numbers only; equal numbers are neighbours and do not meet. The digit
# before the point is the floor, the one behind it a step of the stairs within the floor.
FLOORS = {
    "garbage": -0.1, "files": -0.1, "roll_call": -0.1,
    "interrupts": 0.0, "tables": 0.0, "parallel": 0.0, "pytrees": 0.0, "tape": 0.0, "special": 0.0,
    "distributed": 0.1, "points": 0.1, "compiling": 0.1, "safe": 0.1, "diagnostics": 0.1,
    "pooling": 0.2, "optimization": 1.0,
    "linalg": 0.1, "rows": 0.1, "indicators": 1.0, "covariances": 1.0,
    "limits": 1.0, "regions": 1.1,
    "total_moments": 1.1, "problem": 1.2, "units": 1.3,
    "quadrature": 1.2, "separation": 1.4,
    "probability": 2.0, "moments": 4.0, "sampling": 4.0,
    "likelihood": 4.5, "distributions": 5.0, "fitting": 5.0, "mixtures": 5.5,
    "plotting": 6.0, "exporting": 6.0, "torch": 6.0, "sklearn": 6.0, "config": 6.0,
    "completed_runs": 6.0, "report": 6.1,
    "runs": 7.0, "starting_point": 7.0, "running": 7.1, "sweeps": 7.15, "cli": 7.2,
}  # fmt: skip
ROOMS = {
    "special": {
        "tails": 0, "logspace": 0, "intervals": 1, "moments": 2, "normal": 3, "quick_moments": 4,
    },
    "quadrature": {
        "log_concave": 0, "double_double": 0,
        "bivariate": 1, "conditioning": 1, "factor_integrand": 1, "markov_chain": 1, "polygon": 1,
        "one_factor": 1, "quadratic_form": 2, "trivariate": 2, "two_factors": 2,
    },
    "separation": {
        "kernel": 0, "ordering": 0, "tilting": 0, "draw_offsets": 1, "arrangement": 1,
        "expectation_propagation": 2, "twisting": 3, "particles": 4, "plan": 4, "weights": 5,
        "planning": 6, "path_moments": 6, "slopes": 6, "proposals": 7, "row_plans": 7,
        "gibbs": 8,
        "block_factor": 0, "block_paths": 1, "block_tilt": 2,
    },
    "probability": {
        "method": 0.5, "structure": 1, "factor_lattice": 4, "dense_blocks": 4,
        "row_moments": 1, "row_batches": 6, "refinement": 7, "differentiation": 8,
        "held_parts": 8.5, "automatic": 9,
        "explanation": 10, "gradients": 10,
    },
    "likelihood": {
        "patterns": 0, "observations": 1, "conditioning": 1, "integrals": 2,
        "terms": 2, "spread_rows": 2, "held": 3, "blocks": 3, "rows": 4, "slopes": 5,
    },
    "distributions": {
        "arguments": 0, "supports": 0, "compiled": 0, "events": 1,
    },
    "optimization": {
        "digests": -2, "parameters": 0, "checkpoint": -1, "termination": 0, "newton": 0,
        "wald": 0, "progress": 1, "uncertainty": 1, "widening": 1, "result": 2, "steps": 2,
        "descent": 3, "loop": 3,
    },
    "fitting": {
        "held": 0, "regression_loss": 0, "observations_loss": 0, "statistics": 0, "existence": 0,
        "citations": 0, "profile": 0, "centring": 1, "fraction_loss": 1,
        "outliers": 1, "truncated_normal_loss": 1, "truncated_normal_rows": 1,
        "truncated_normal_result": 3.1,
        "rising": 1, "observations_start": 2, "truncated_normal_notes": 3.2, "intervals": 3.5,
        "truncated_normal_end": 3.3,
        "expected": 2, "regression_rows": 2.5, "inference": 3, "likelihood_fit": 3,
        "fraction_search": 3, "observations_result": 4, "regression_result": 4,
        "observations_problem": 4.2, "observations": 4.5,
    },
    "mixtures": {
        "likelihood": 0, "distribution": 1, "factors": 0, "parameters": 1, "posterior": 1,
        "prior": 1.5, "loss": 2, "em": 3, "edge": 3.5,
        "result": 3, "curvature": 3, "starts": 4, "certificate": 4, "rising": 4, "fit": 5,
        "path": 6,
    },
    "regions": {"region": 0, "quadratic": 1},
    "plotting": {"style": 0, "panels": 1, "plane": 1},
    "tables": {
        "censoring": 0, "interchange": 0, "columns": 1, "alignment": 2, "files": 2, "known": 2,
        "streams": 3,
    },
    "config": {"yaml": 0, "sections": 0, "experiment": 1, "schema_line": 2},
}  # fmt: skip
TOP = 5  # rooms that are not named, the methods and the estimators, are neighbours
DOORS = {
    "numpyro": {
        "distributions.supports",
        "distributions.events",
        "distributions.normal",
        "distributions.multivariate_normal",
        "optimization.parameters",
        "mixtures.distribution",
    },
    "optax": {"optimization.loop", "optimization.steps"},
    "matplotlib": {
        "plotting.style",
        "plotting.panels",
        "plotting.plane",
        "plotting.fits",
        "plotting.quantiles",
        "plotting.truncation",
        "plotting.estimators",
    },
    "ruamel": {"config.yaml"},
    "pydantic": {"config.loading", "config.sections"},
    "tyro": {"cli"},
    "sklearn": {"sklearn"},
    "torch": {"torch"},
}


def name_of(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: pathlib.Path, relative: bool = False) -> set[str]:
    """Dotted names of everything a file imports, function bodies included.

    Args:
        path: the file.
        relative: whether it may import its neighbours relatively; those are left out then.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level and relative:
                continue
            assert node.level == 0, f"{path}: relative imports hide the floors"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports(path: pathlib.Path) -> set[str]:
    """Modules of this package that a file imports, without the package's name."""
    modules = {name_of(module) for module in MODULES}
    inside = {name.removeprefix("truncgauss.") for name in imports_of(path) if "truncgauss" in name}
    own_packages = {name_of(parent / "__init__.py") for parent in path.parents if parent >= PACKAGE}
    return (inside & modules) - {"", name_of(path)} - own_packages


def allowed(importer: str, imported: str) -> bool:
    above, below = importer.split("."), imported.split(".")
    if above[0] != below[0]:
        return FLOORS[below[0]] < FLOORS[above[0]]
    if len(above) == 1:
        return True  # a façade may import its rooms
    rooms = ROOMS[above[0]]
    return rooms.get(below[1], TOP) < rooms.get(above[1], TOP)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_only_from_lower_floors(path):
    name = name_of(path)
    if not name:
        return  # the façade names everything and imports nothing before it is asked
    wrong = [imported for imported in own_imports(path) if not allowed(name, imported)]
    assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_heavy_dependencies_enter_through_one_door(path):
    roots = {name.split(".")[0] for name in imports_of(path)}
    wrong = {root for root in roots & set(DOORS) if name_of(path) not in DOORS[root]}
    assert not wrong, f"{name_of(path)} imports {wrong}"


def code_lines(tree: ast.AST, text: str) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.split("#")[0].strip()}
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if documented and ast.get_docstring(node):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, docstring.end_lineno + 1))
    first, last = getattr(tree, "lineno", 1), getattr(tree, "end_lineno", len(text))
    return sum(first <= n <= last for n in lines)


def in_root(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def too_long(path: pathlib.Path) -> list[str]:
    """Functions of a file that are longer than the rule allows; a file is as long as its idea."""
    text = path.read_text()
    functions = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.FunctionDef)]
    return [function.name for function in functions if code_lines(function, text) > 42]


@pytest.mark.parametrize("path", [*MODULES, *EXPERIMENTS, *TESTS], ids=in_root)
def test_functions_stay_small(path):
    functions = too_long(path)
    assert not functions, f"{path.name}: split {functions} along an idea"
    assert path.stem not in {"utils", "util", "helpers", "misc", "common", "core"}


EXPERIMENT_PARTS = [path for path in EXPERIMENTS if path.parent.parent == ROOT / "experiments"]


@pytest.mark.parametrize("path", EXPERIMENT_PARTS, ids=in_root)
def test_an_experiment_is_a_guest(path):
    """Settings need no JAX, computing needs no figure, and nothing needs the command line."""
    roots = {name.split(".")[0] for name in imports_of(path, relative=True)}
    if path.stem == "settings":
        outside = roots - set(sys.stdlib_module_names)
        assert outside <= {"pydantic", "truncgauss"}, f"{path}: settings import {outside}"
    assert not roots & {"matplotlib", "pydantic"} or path.stem == "settings"
    drawn = {name for name in imports_of(path, relative=True) if "plotting" in name}
    assert not drawn or path.stem == "plot", f"{path}: only plot.py draws"
    assert not any("truncgauss.cli" in name for name in imports_of(path, relative=True))


def test_the_package_names_no_experiment():
    """Loading settings and running experiments need the contract, and no name."""
    names = {path.parent.name for path in EXPERIMENT_PARTS}
    command = ("cli.py", "running.py", "runs.py", "completed_runs.py", "report.py")
    for path in (*PACKAGE.glob("config/*.py"), *map(PACKAGE.joinpath, command)):
        tree = ast.parse(path.read_text())
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not texts & names, f"{path.name} names {texts & names}"


def test_type_checkers_see_the_public_names_at_their_homes():
    import truncgauss as tg

    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    branches = [node for node in tree.body if isinstance(node, ast.If)]
    [checked] = [node for node in branches if ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(checked.body)
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    seen = {node.module: {alias.name for alias in node.names} for node in imports}
    homes = {module: set(names) for module, names in tg._HOMES.items()}
    assert seen == {"truncgauss": set(tg._MODULES), **homes}


def test_the_citation_has_the_version_of_the_package():
    import truncgauss as tg

    [version] = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == tg.__version__


def test_configs_experiments_and_figures_share_their_stems():
    stems = {path.parent.name for path in (ROOT / "experiments").glob("*/settings.py")}
    assert stems, "there are no experiments"
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == stems
    for suffix in ("png", "svg", "json"):
        assert {path.stem for path in (ROOT / "figures").glob(f"*.{suffix}")} == stems


def test_checking_a_config_does_not_start_jax():
    code = "import truncgauss, truncgauss.config, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_importing_leaves_float64_alone():
    code = (
        "import truncgauss as tg, jax\n"
        "[getattr(tg, name) for name in tg.__all__]\n"
        "assert not jax.config.jax_enable_x64"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
