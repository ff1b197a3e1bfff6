"""The house stands: floors, doors, names and sizes, read off the syntax trees."""

import ast
import importlib
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

# A room imports from the rooms before it, never from those behind.
ROOMS = (
    "words", "arrays", "special", "gaussian", "quadrature", "separation", "probability", "student",
    "fields", "draws", "tables", "execution", "likelihood", "diagnosis", "optimize", "fitting",
    "covariates", "fits", "distributions", "plotting", "runs",
)  # fmt: skip
TYPED_BY_USERS = {"", "__main__", "cli", "sklearn", "torch"}  # the only files outside of rooms
DOORS = {
    "numpyro": {
        "distributions.supports",
        "distributions.univariate",
        "distributions.censored",
        "distributions.multivariate_normal",
        "distributions.multivariate_student_t",
        "optimize.constraints",
        "distributions.mixture",
    },
    "optax": {"optimize.loop", "optimize.steps"},
    "matplotlib": {
        "plotting.style",
        "plotting.panels",
        "plotting.plane",
        "plotting.fits",
        "plotting.quantiles",
        "plotting.truncation",
    },
    "narwhals": {"tables.columns", "tables.frames"},
    "ruamel": {"runs.config.yaml"},
    "pydantic": {"runs.config.experiment", "runs.config.loading", "runs.config.sections"},
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


def imported_modules(path: pathlib.Path) -> set[str]:
    """Modules of this package that a file imports, without the package's name."""
    modules = {name_of(module) for module in MODULES}
    inside = {name.removeprefix("truncgauss.") for name in imports_of(path) if "truncgauss" in name}
    parents = {name_of(parent / "__init__.py") for parent in path.parents if parent >= PACKAGE}
    return (inside & modules) - {"", name_of(path)} - parents


IMPORTS = {name_of(path): imported_modules(path) for path in MODULES}


def test_rooms_import_from_the_rooms_before_them():
    outside = {name for name in IMPORTS if name.split(".")[0] not in ROOMS}
    assert outside == TYPED_BY_USERS
    order = {room: number for number, room in enumerate(ROOMS)}
    wrong = [
        f"{name} imports {imported}"
        for name, imports in IMPORTS.items()
        for imported in imports
        if name not in TYPED_BY_USERS
        and order.get(imported.split(".")[0], len(ROOMS)) > order[name.split(".")[0]]
    ]
    assert not wrong, wrong


def test_no_module_imports_itself_through_others():
    left = dict(IMPORTS)
    while free := [name for name, imports in left.items() if not imports & left.keys()]:
        left = {name: imports for name, imports in left.items() if name not in free}
    assert not left, f"a cycle among {sorted(left)}"


def test_heavy_dependencies_enter_through_few_doors():
    wrong = [
        f"{name_of(path)} imports {root}"
        for path in MODULES
        for root in {name.split(".")[0] for name in imports_of(path)} & DOORS.keys()
        if name_of(path) not in DOORS[root]
    ]
    assert not wrong, wrong


# Words of conversation that say nothing of statistics; CONTRIBUTING has what to write instead.
VAGUE = {"dear", "found", "given", "here", "mark", "near", "own", "place", "places", "told"}


def vague_names(path: pathlib.Path) -> list[str]:
    """Names of functions, classes, arguments and attributes, and first words of docstrings."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
            if re.match(r"(What|That|How|Where|Which)\b", ast.get_docstring(node) or ""):
                names.append(f"the docstring of {node.name}")
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.AnnAssign):
            names.append(ast.unparse(node.target))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.attr)
    plain = lambda name: name.strip("_").lower() not in VAGUE and "docstring" not in name
    return [name for name in names if not plain(name)]


def test_names_are_words_of_statistics():
    vague = {in_root(path): names for path in MODULES if (names := vague_names(path))}
    assert not vague, vague


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
    """Functions of a file that are longer than the rule allows."""
    text = path.read_text()
    functions = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.FunctionDef)]
    return [function.name for function in functions if code_lines(function, text) > 80]


def test_functions_stay_small():
    """At most 80 lines of code; a file is as long as its idea."""
    files = [*MODULES, *EXPERIMENTS, *TESTS]
    long = {in_root(path): functions for path in files if (functions := too_long(path))}
    assert not long, f"split along an idea: {long}"
    vague = {"utils", "util", "helpers", "misc", "common", "core"}
    assert not {path.stem for path in files} & vague


EXPERIMENT_PARTS = [path for path in EXPERIMENTS if path.parent.parent == ROOT / "experiments"]


def test_an_experiment_is_a_guest():
    """Settings need no JAX, computing needs no figure, and nothing needs the command line."""
    for path in EXPERIMENT_PARTS:
        names = imports_of(path, relative=True)
        roots = {name.split(".")[0] for name in names}
        if path.stem == "settings":
            outside = roots - set(sys.stdlib_module_names)
            assert outside <= {"pydantic", "truncgauss"}, f"{path}: settings import {outside}"
        assert not roots & {"matplotlib", "pydantic"} or path.stem == "settings", path
        drawn = {name for name in names if "plotting" in name}
        assert not drawn or path.stem == "plot", f"{path}: only plot.py draws"
        assert not any("truncgauss.cli" in name for name in names), path


def test_the_package_names_no_experiment():
    """Loading settings and running experiments need the contract, and no name."""
    names = {path.parent.name for path in EXPERIMENT_PARTS}
    for path in (PACKAGE / "cli.py", *PACKAGE.glob("runs/**/*.py")):
        tree = ast.parse(path.read_text())
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not texts & names, f"{path.name} names {texts & names}"


def test_type_checkers_see_the_public_names_at_their_homes():
    import truncgauss as tg

    *imports, version = ast.parse((PACKAGE / "__init__.pyi").read_text()).body
    assert ast.unparse(version) == "__version__: str"
    seen = {alias.name: (node.module, alias.asname) for node in imports for alias in node.names}
    assert list(tg.__all__) == sorted([*seen, "__version__"]) and tg._MODULES.keys() < seen.keys()
    for name, (home, shown) in seen.items():
        assert shown == name and (tg._MODULES.get(name, home).startswith(home))
        module = importlib.import_module(tg._MODULES.get(name, home))
        assert getattr(tg, name) is (module if name in tg._MODULES else getattr(module, name))


STUBS = sorted(PACKAGE.rglob("*/__init__.pyi"))


def exported(stub: pathlib.Path) -> dict[str, str]:
    """Names that a package shows, with the modules that define them."""
    nodes = ast.parse(stub.read_text()).body
    assert all(isinstance(x, ast.ImportFrom) and x.level == 0 for x in nodes), stub
    assert all(alias.asname == alias.name for node in nodes for alias in node.names), stub
    return {alias.name: node.module for node in nodes for alias in node.names}


def test_packages_show_the_names_of_their_stubs():
    """To `help`, to `import *` and to type checkers, each from the module that defines it."""
    assert {name_of(stub.with_name("__init__.py")) for stub in STUBS} >= {
        "fitting", "special", "tables", "runs.config",
    }  # fmt: skip
    for stub in STUBS:
        package = importlib.import_module(f"truncgauss.{name_of(stub.with_name('__init__.py'))}")
        homes = exported(stub)
        assert package.__all__ == dir(package) == sorted(homes), stub
        for name, home in homes.items():
            assert getattr(package, name) is getattr(importlib.import_module(home), name)
        with pytest.raises(AttributeError, match="did you mean"):
            getattr(package, f"{min(homes, key=len)}x")


def test_packages_import_nothing_by_themselves():
    for path in PACKAGE.rglob("*/__init__.py"):
        served = {"truncgauss.arrays.importing", "truncgauss.arrays.importing.served"}
        assert imports_of(path) == (served if path.with_suffix(".pyi") in STUBS else set()), path


# Files and lines that an entry may load through the imports at the top of its files and the names
# of packages that it uses, these to the next fifty: they fall, and never rise.
REACH = {
    "special.normal": (6, 1_450),
    "gaussian.regions.box": (12, 2_600),
    "probability.soft": (22, 5_400),
    "probability.automatic": (22, 5_160),
    "distributions.univariate": (14, 2_800),
    "optimize.loop": (12, 3_040),
    "fitting.model": (24, 4_900),  # of any rows, which its own defines
    "fitting.engine": (25, 5_200),
    "fits.gaussian.truncated_normal": (88, 24_150),
    "fits.fractions": (45, 10_780),
    "fits.polychoric.polychoric_correlations": (32, 6_860),
}


def loaded_with(name: str, trees: dict[str, ast.Module]) -> set[str]:
    """Modules of the package that a module imports when it is imported, or its functions use."""
    faces = {name_of(stub.with_name("__init__.py")): exported(stub) for stub in STUBS}
    needed, packages = set(), {}
    for node in trees[name].body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "truncgauss":
            package = node.module.removeprefix("truncgauss").removeprefix(".")
            for alias in node.names:
                module = f"{package}.{alias.name}".removeprefix(".")
                needed.add(module if module in trees else package)
                if module in faces:
                    packages[alias.asname or alias.name] = faces[module]
    for node in ast.walk(trees[name]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = packages.get(node.value.id, {}).get(node.attr)
            needed |= {home.removeprefix("truncgauss.")} if home else set()
    return needed


def test_fits_import_none_but_the_gaussian_one():
    """On which the others are built: it imports none of them."""
    folders = {path.parent.name for path in PACKAGE.glob("fits/*/__init__.py")}
    rooms = folders - {"gaussian"} | {"fractions", "sample_selection"}
    edges = {
        (name.split(".")[1], other.split(".")[1])
        for name, found in IMPORTS.items()
        for other in found
        if name.startswith("fits.") and other.startswith("fits.")
    }
    edges = {(fit, other) for fit, other in edges if other in rooms and other != fit}
    assert not edges, edges


def test_reach_only_falls():
    trees = {name_of(path): ast.parse(path.read_text()) for path in MODULES}
    lines = {name_of(path): path.read_text().count("\n") for path in MODULES}
    for entry, most in REACH.items():
        reached, todo = set(), [entry]
        for name in todo:
            if name not in reached:
                reached.add(name)
                parents = [name.rsplit(".", k)[0] for k in range(1, name.count(".") + 1)]
                todo += [*loaded_with(name, trees), *parents, ""]
        read = [name for name in reached if lines[name] > 1]  # not packages that show no names
        size = len(read), sum(lines[name] for name in read)
        assert size[0] <= most[0] and size[1] <= most[1], f"{entry} reaches {size}, of {most}"


# The names that rooms outside of the core take from it, by module: a contract, to which nothing is
# added without need.
CORE = {
    "special", "gaussian", "quadrature", "separation", "probability", "student", "fields", "draws",
}  # fmt: skip
CONTRACT = {
    "draws.sampling": "truncated_samples",
    "draws.truncated_moments": "truncated_moments",
    "gaussian.covariances": "Covariance CovarianceMatrix LowRank ScaleTril",
    "gaussian.problem": "Moments Problem as_problem",
    "gaussian.regions.box": "Box",
    "gaussian.regions.polyhedron": "Polyhedron",
    "gaussian.regions.region": "LinearRegion Region as_linear",
    "gaussian.regions.section": "Section",
    "probability.automatic": "Automatic log_probability",
    "probability.blocks": "at_held_matrix",
    "probability.exact": "Exact",
    "probability.importance": "ImportanceSampling",
    "probability.independence": "estimates_of",
    "probability.method": "Method average estimate with_derivative",
    "probability.separation": "Separation",
    "quadrature.log_concave": "sums",
    "special.logspace": "log1mexp log_sigmoid",
    "special.normal": (
        "MassSlopes log_interval_mass log_mass_and_slopes truncated_entropy truncated_log_density "
        "truncated_log_mass truncated_mean truncated_quantile truncated_variance"
    ),
    "special.student_t": "log_t_mass",
    "special.tails": (
        "Interval LOG_SQRT_2PI hazard hazard_excess log_ndtr ndtr standardize undefined"
    ),
    "student.largest_statistic": "LargestStatistic",
    "student.quantile": "Quantile",
    "student.student": "log_kernel",
}


def test_outer_rooms_take_the_names_of_a_contract_from_the_core():
    taken: dict[str, set[str]] = {}
    for path in MODULES:
        room = name_of(path).split(".")[0]
        if room in {*CORE, "words", "arrays", ""}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("truncgauss."):
                home = node.module.removeprefix("truncgauss.")
                if home.split(".")[0] in CORE:
                    taken.setdefault(home, set()).update(alias.name for alias in node.names)
    assert taken == {home: set(names.split()) for home, names in CONTRACT.items()}


# How often modules outside of the core's first room ask whether a region or a covariance is of a
# kind: they fall, and never rise. What one is, it says itself: a region by `is_box`, `is_linear`,
# `is_quadratic`, `is_outside`, `answers_points` and `score_selection()`, a covariance by
# `is_matrix`, `is_factor`, `is_chain`, `is_sparse` and `num_factors`.
KINDS_OF_REGIONS = {
    "Ball", "Box", "Ellipsoid", "Injections", "LinearRegion", "Outside", "Polyhedron",
    "QuadraticRegion", "ScoreSelection", "Section", "Selection",
}  # fmt: skip
KINDS_OF_COVARIANCES = {"CovarianceMatrix", "Directed", "LowRank", "Markov", "ScaleTril"}
KINDS_ASKED = {"regions": (KINDS_OF_REGIONS, 0), "covariances": (KINDS_OF_COVARIANCES, 0)}


def kinds_asked(tree: ast.Module, kinds: set[str]) -> int:
    """How many of some kinds the calls of isinstance in a module name."""
    calls = (x for x in ast.walk(tree) if isinstance(x, ast.Call))
    named = [x.args[1] for x in calls if getattr(x.func, "id", "") == "isinstance"]
    names = [{getattr(y, "id", getattr(y, "attr", "")) for y in ast.walk(x)} for x in named]
    return sum(len(some & kinds) for some in names)


@pytest.mark.parametrize("what", KINDS_ASKED)
def test_outside_of_their_room_fewer_and_fewer_ask_for_kinds(what):
    kinds, most = KINDS_ASKED[what]
    defined = {
        x.name
        for path in MODULES
        for x in ast.walk(ast.parse(path.read_text()))
        if isinstance(x, ast.ClassDef)
    }
    assert kinds <= defined, kinds - defined
    others = [path for path in MODULES if not name_of(path).startswith("gaussian.")]
    asked = {name_of(path): kinds_asked(ast.parse(path.read_text()), kinds) for path in others}
    where = {name: count for name, count in asked.items() if count}
    cure = "ask what it says of itself, such as region.is_box, in place of isinstance"
    assert sum(asked.values()) <= most, f"{cure}: {where}"


def test_earlier_names_work_with_a_warning_that_says_the_new_one():
    import truncgauss as tg

    assert not set(tg._MOVED) & set(tg.__all__)
    for name, new in tg._MOVED.items():
        with pytest.warns(DeprecationWarning, match=f"tg.{name} is {re.escape(new)} now: write "):
            value = getattr(tg, name)
        assert value is eval(new, {"tg": tg}), name
    for name, cure in tg._GONE.items():
        with pytest.raises(AttributeError, match=re.escape(cure)):
            getattr(tg, name)


def test_earlier_modules_are_found_with_a_warning_that_says_the_new_one():
    import truncgauss as tg

    assert not {old.removeprefix("truncgauss.") for old in tg._MOVED_MODULES} & set(IMPORTS)
    code = (
        "import importlib, sys, pytest, truncgauss as tg\n"
        "for old, new in sorted(tg._MOVED_MODULES.items()):\n"  # packages before their modules
        "    with pytest.warns(DeprecationWarning, match=f'{old} is {new} now'):\n"
        "        module = importlib.import_module(old)\n"
        "    assert module is importlib.import_module(new) and module.__name__ == new\n"
        "    assert module.__spec__.name == new and sys.modules[old] is module\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_configs_experiments_and_figures_share_their_stems():
    stems = {path.parent.name for path in (ROOT / "experiments").glob("*/settings.py")}
    assert stems, "there are no experiments"
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == stems
    for suffix in ("png", "svg", "json", "md"):  # with a caption
        assert {path.stem for path in (ROOT / "figures").glob(f"*.{suffix}")} == stems


def test_importing_leaves_jax_float64_and_devices_alone():
    code = (
        "import sys; before = {*sys.modules}\n"
        "import truncgauss as tg\n"
        "assert not {'ast', 'pathlib', 're', 'typing'} & ({*sys.modules} - before)\n"  # take long
        "import truncgauss.runs.config\n"
        "assert 'jax' not in sys.modules\n"
        "import jax\n"
        "[getattr(tg, name) for name in tg.__all__]\n"
        "assert not jax.config.jax_enable_x64\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "assert jax.device_count() == 2"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("call", "unneeded"),
    [
        (
            "tg.fraction_not_truncated([0.0], [[1.0]], tg.Box([0.0], [1e3]),"
            " method=tg.SoftMonteCarlo(edge=tg.Tanh(100.0)))",
            {"scipy"},
        ),
        (
            "tg.fit_regression([0.0, 1.0, 0.5, 2.0, 3.0], [[1.0]] * 5, censored_low=0.0)",
            {"scipy.linalg", "scipy.optimize", "scipy.stats"},
        ),
    ],
)
def test_first_calls_import_of_scipy_what_they_need(call, unneeded):
    """`scipy.stats` takes a second, `linalg`, which JAX imports for LAPACK, a quarter of one."""
    code = (
        f"import sys; import truncgauss as tg; {call}\n"
        f"assert not (found := {unneeded} & {{*sys.modules}}), found"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_class_name_stands_for_one_class():
    """Sections of a configuration are apart: they have the names of what they describe."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if name_of(path) == "runs.config.sections":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    assert not (several := {name: at for name, at in homes.items() if len(at) > 1}), several


def test_a_file_name_stands_for_one_file():
    names = [path.name for path in MODULES if path.stem != "__init__"]
    assert not (several := {name for name in names if names.count(name) > 1}), several


# Bases from elsewhere that call no method of a subclass; of others it is not known what they call.
CALLING_NONE = {"NamedTuple", "Protocol", "Generic", "ABC", "Exception", "ValueError", "KeyError"}


def names_in(node: ast.stmt) -> list[str]:
    """The attribute that a statement in the body of a class defines."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [getattr(node, "name", ""), *(getattr(target, "id", "") for target in targets)]


def test_a_method_of_a_subclass_overrides_one_or_is_called():
    """One that does neither was left behind where the method of its base has another name now."""
    trees = [ast.parse(path.read_text()) for path in MODULES]
    nodes = [x for tree in trees for x in ast.walk(tree) if isinstance(x, ast.ClassDef)]
    bases = {x.name: {ast.unparse(b).partition("[")[0] for b in x.bases} for x in nodes}
    names = {x.name: {name for part in x.body for name in names_in(part)} for x in nodes}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = [path.read_text() for path in (*MODULES, *EXPERIMENTS, *TESTS, *pages)]
    called = {x for text in texts for x in re.findall(r"(?<=\.)\w+|(?<=\")\w+(?=\")", text)}
    lost = []
    for node in nodes:
        above, todo = set(), [node.name]
        for name in todo:  # and the bases of bases
            todo += bases.get(name, ())
        for name in todo[1:]:
            above |= names.get(name, set())
        methods = {x.name for x in node.body if isinstance(x, ast.FunctionDef)}
        if not {x for x in todo if x not in bases} - CALLING_NONE:
            unused = methods - above - called if todo[1:] else set()
            lost += [f"{node.name}.{x}" for x in unused if not x.startswith("__")]
    assert not lost, f"they override nothing, and nothing calls them: {sorted(lost)}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_page_of_a_room_says_what_it_imports_and_defines(room):
    page = (PACKAGE / room / "README.md").read_text()
    first = re.search(r"^Read first: `([\w/.]+)`$", page, flags=re.MULTILINE)[1]
    assert (PACKAGE / room / first).exists()
    said = set(re.findall(r"`(\w+)`", re.search(r"^Imports: (.*)$", page, flags=re.MULTILINE)[1]))
    inside = [found for name, found in IMPORTS.items() if name.split(".")[0] == room]
    assert said == {name.split(".")[0] for found in inside for name in found} - {room}
    rows = re.findall(r"^\| ([^|-][^|]*) \|[^|]*\| `([\w/.]+)` \|$", page, flags=re.MULTILINE)
    for nouns, file in rows:
        text = (PACKAGE / room / file).read_text()
        for noun in re.findall(r"`(\w+)`", nouns):
            assert re.search(rf"^(?:def|class) {noun}\b", text, flags=re.MULTILINE), (noun, file)


def test_the_guide_lists_all_rooms_in_their_order():
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"^\| \[(\w+)/\]\(\.\./truncgauss/\1\) \|", guide, flags=re.MULTILINE)
    assert listed == list(ROOMS)


def test_where_a_change_begins_is_where_the_guide_says():
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    cells = guide.partition("\n| to change |")[2].partition("\n\n")[0].split("|")
    named = 0
    for cell in cells:
        text = "".join((ROOT / x).read_text() for x in re.findall(r"\]\(\.\./([\w/]+\.py)\)", cell))
        for name in re.findall(r"`(\w+)`", cell):
            named += 1
            defined = rf"^ *(?:def {name}\(|class {name}\b|{name}: |(?:\w+, )*{name}(?:, \w+)* = )"
            assert re.search(defined, text, flags=re.MULTILINE), (name, cell)
    assert named > 5


def test_what_is_listed_as_long_is_a_test():
    lines = (ROOT / "tests" / "long_tests.txt").read_text().splitlines()
    for line in lines:
        path, name = re.fullmatch(r" *\d+ ([\w/.]+)::(\w+)(?:\[.*\])?", line).groups()
        assert f"\ndef {name}(" in (ROOT / path).read_text(), line
    assert lines == sorted(lines, key=lambda line: line.split(maxsplit=1)[1])
