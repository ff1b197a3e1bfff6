"""Settings: every mistake is told in one line with its place, and nothing else is raised.

`TRUNCGAUSS_FUZZ=100000` tries as many damaged files as that.
"""

import json
import os
import pathlib
import random
import re
import string
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from truncgauss.runs import config
from truncgauss.runs.config import ConfigError, yaml

ROOT = pathlib.Path(__file__).parents[1]
LINE = re.compile(r"[^:]+:\d+:\d+: \S.*: .+ \(got .+\)", re.DOTALL)


TINY = """\
from typing import Annotated, Literal

from pydantic import Field

from truncgauss import config


class Tanh(config.Model):
    kind: Literal["tanh"]
    steepness: config.Positive


class Hard(config.Model):
    kind: Literal["hard"]


class Adam(config.Model):
    kind: Literal["adam"]
    learning_rate: config.Positive


class Fit(config.Model):
    optimizer: Adam
    num_steps: config.Count


class Settings(config.Experiment):
    '''One of everything that experiments share.'''

    gaussian: config.Gaussian
    limits: config.Limits
    shift: config.Grid
    edge: Annotated[Tanh | Hard, Field(discriminator="kind")]
    fit: Fit
    pair: Annotated[tuple[int, ...], Field(min_length=2)] = (1, 2)
    names: tuple[str, ...]
    words: tuple[str, ...] = ()
    pairs: dict[str, str] = {}
    data: config.DataFile | None = None


def run(settings): ...
def plot(results): ...
"""

GOOD = """\
experiment: tiny.py
seed: 1
gaussian:
  loc: [0, 1e-3]
  covariance: [[1.0, 0.5], [0.5, 1.0]]
limits:
  low: [-.inf, 0]
  high: [1, .inf]
shift: {start: -3, stop: 1e1, num: 500}
edge: {kind: tanh, steepness: 100}
fit: {optimizer: {kind: adam, learning_rate: 1e-2}, num_steps: 10}
names: [a, b]
"""


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("tiny.py").write_text(TINY)


def loaded(text: str | bytes) -> config.Experiment:
    raw = text.encode() if isinstance(text, str) else text
    pathlib.Path("x.yaml").write_bytes(raw)
    return config.load("x.yaml")


def told(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return str(caught.value)


def test_numbers_and_infinities_are_read_as_such():
    tiny = loaded(GOOD)
    assert tiny.gaussian.loc == (0.0, 0.001)
    assert tiny.limits.low == (-float("inf"), 0.0)
    assert tiny.shift.stop == 10.0 and tiny.seed == 1
    assert tiny.devices == 1 and tiny.dtype == "float64"
    assert tiny == loaded(b"\xef\xbb\xbf" + GOOD.encode()) == loaded(GOOD.replace("\n", "\r\n"))


MISTAKES = [
    # what is replaced, by what, the place, what is said
    ("seed: 1", "seed: 1\nsede: 2", "3:1: sede", "did you mean 'seed'? (got 'sede')"),
    ("seed: 1", "sede: 1", "2:1: sede", "unknown key; did you mean 'seed'?"),
    ("low: [-.inf, 0]", "lo: [-.inf, 0]", "7:3: limits.lo", "did you mean 'low'?"),
    ("seed: 1", "seed: 1\n.x: 1", "3:1: .x", "unknown key"),
    ("seed: 1", 'seed: 1\n" a\\nb": 1', r"3:1: ' a\nb'", "unknown key"),
    ("seed: 1", "seed: 1\nseed: 1", "3:1: seed", "duplicate key, already given in line 2"),
    ("num: 500", "num: 500, num: 4", "9:41: shift.num", "duplicate"),
    (", num: 500", "", "9:1: shift.num", "is required"),
    ("seed: 1", "seed: one", "2:7: seed", "must be a valid integer (got 'one')"),
    ("seed: 1", "seed: 1,2", "2:7: seed", "write `sweep: {seed: [1,2]}` (got '1,2')"),
    ("seed: 1", "seed: true", "2:7: seed", "(got True)"),
    ("seed: 1", "seed: -1", "2:7: seed", "greater than or equal to 0 (got -1)"),
    ("seed: 1", "seed:", "2:1: seed", "must be a valid integer (got nothing)"),
    ("num: 500", "num: 5e2", "9:36: shift.num", "(got 500.0)"),
    ("steepness: 100", "steepness: -1", "10:31: edge.steepness", "greater than 0 (got -1)"),
    ("steepness: 100", "steepness: .inf", "10:31: edge.steepness", "finite number (got inf)"),
    ("steepness: 100", "steepness: '100'", "10:31: edge.steepness", "(got '100')"),
    ("steepness: 100", "steepness: 100, width: 1", "10:36: edge.width", "unknown key"),
    ("kind: tanh", "kind: tahn", "10:14: edge.kind", "did you mean 'tanh'?"),
    ("kind: tanh, ", "", "10:1: edge.kind", "is required"),
    ("{kind: tanh, steepness: 100}", "tanh", "10:7: edge", "section with keys"),
    ("high: [1, .inf]", "high: [1, -1]", "8:13: limits.high[1]", "greater than low"),
    ("high: [1, .inf]", "high: [1, 0]", "8:13: limits.high[1]", "greater than low"),
    ("high: [1, .inf]", "high: [1]", "8:9: limits.high", "as many numbers as low, 2"),
    ("high: [1, .inf]", "high: 1", "8:9: limits.high", "must be a list (got 1)"),
    ("high: [1, .inf]", "high: []", "8:9: limits.high", "must not be empty"),
    ("high: [1, .inf]", "high: [1, .nan]", "8:13: limits.high[1]", "(got nan)"),
    ("high: [1, .inf]", "high: [1, inf]", "8:13: limits.high[1]", "write .inf (got 'inf')"),
    ("low: [-.inf", "low: [-Infinity", "7:9: limits.low[0]", "write -.inf (got '-Infinity')"),
    ("high: [1, .inf]", "high: [1, x]", "8:13: limits.high[1]", "(got 'x')"),
    ("start: -3", "start: 30", "9:26: shift.stop", "greater than start"),
    ("[1.0, 0.5],", "[-1, 0.5],", "5:17: gaussian.covariance[0][0]", "must be positive (got -1.0)"),
    ("[1.0, 0.5],", "[1, 0.4],", "5:15: gaussian.covariance", "symmetric"),
    ("[1.0, 0.5], [0.5", "[1.0, 2], [2", "5:15: gaussian.covariance", "positive definite"),
    ("[1.0, 0.5],", "[1.0],", "5:16: gaussian.covariance[0]", "must be 2 numbers"),
    ("loc: [0, 1e-3]", "loc: [0]", "5:15: gaussian.covariance", "as many rows as loc"),
    ("seed: 1", "seed: 1\ndtype: float46", "3:8: dtype", "'float32' or 'float64'"),
    ("seed: 1", "seed: 1\npair: [1]", "3:7: pair", "must have at least 2 entries"),
    ("seed: 1", "seed: 1\npair: [1, x]", "3:11: pair[1]", "(got 'x')"),
    ("seed: 1", "seed: 1\ndevices: 0", "3:10: devices", "greater than 0"),
    ("seed: 1", "seed: 1\ndevices: 2", "3:10: devices", "must be 1: this experiment does not"),
    ("seed: 1", "seed: 1\ndata: no.csv", "3:7: data", "no such file, looked in"),
    ("seed: 1", "seed: 1\ndata: ~nobody/no.csv", "3:7: data", "no such file, looked in"),
    ("seed: 1", 'seed: 1\ndata: "x\\0.csv"', "3:7: data", "no such file, looked in"),
    ("seed: 1", "seed: 1\ndata: " + "x" * 300, "3:7: data", "no such file, looked in"),
    ("tiny.py", "shiftcurve", "1:13: experiment", "did you mean 'shift_curve'?"),
    ("tiny.py", "tinny.py", "1:13: experiment", "no such file (got 'tinny.py')"),
    ("tiny.py", "~nobody/tiny.py", "1:13: experiment", "no such file"),
    ("tiny.py", "x" * 300 + ".py", "1:13: experiment", "no such file"),
    ("tiny.py", '"x\\0.py"', "1:13: experiment", "no such file"),
    ("tiny.py", "[tiny]", "1:13: experiment", "unknown; known: assay"),
    ("experiment", "experimint", "1:1: experiment", "is required; known: assay"),
    ("names: [a, b]", "names: [a, b", "13:1: file", "is not YAML"),
    ("names: [a, b]", "names: [a, b]\n\tx: 1", "13:1: file", "indented by a tab"),
    ("names: [a, b]", "names: [a, b]\n---\nx: 1", "13:1: file", "another document"),
    ("names: [a, b]", "names: [a, 3]", "12:12: names[1]", "a valid string; write '3' (got 3)"),
    ("names: [a, b]", 'names: ["C:\\Users"]', "12:14: file", "write 'single quotes', or / in the"),
    ("names: [a, b]", "names: &n [a, *n]", "12:8: names[1]", "alias"),
    ("seed: 1", "seed:1", "2:1: file", "after a colon comes a space: write `seed: 1`"),
    ("names: [a, b]", "names: {a:1}", "12:9: names.a:1", "write `a: 1`"),
    ("seed: 1", "seed: !!int x", "2:7: seed", "cannot be read as"),
    ("seed: 1", "seed: !!python/object:os.system x", "2:7: seed", "cannot be read as"),
    ("seed: 1", "seed: 1\n3: 4", "3:1: file", "a key must be a word; decimals are"),
]  # fmt: skip


NO_SETTINGS = [
    (b"", "1:1", "is empty"),
    (b"# nothing\n", "1:1", "is empty"),
    (b"- 1\n", "1:1", "must be keys with values"),
    (b"hello", "1:1", "must be keys with values"),
    (GOOD.encode("utf-16"), "1:1", "not UTF-8"),
    (GOOD.encode() + "é: 1".encode("latin-1"), "13:1", "not UTF-8"),
    (GOOD.encode() + b"x: a\0b", "13:5", "not printable"),
    (b"a: " + b"[" * 5000, "1:1", "nested too deeply"),
]


def test_a_mistake_is_one_line_at_its_place():
    cases = [(raw, f"{place}: file", message) for raw, place, message in NO_SETTINGS]
    for old, new, *expected in MISTAKES:
        assert GOOD.count(old) >= 1
        cases.append((GOOD.replace(old, new, 1), *expected))
    for text, place, message in cases:
        line = told(text)
        assert line.startswith(f"x.yaml:{place}: ") and message in line, (place, message, line)
        assert LINE.fullmatch(line) and "\n" not in line, line
    lines = told(GOOD.replace("seed: 1", "seed: x\ndevices: 2")).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["x.yaml:2:7", "x.yaml:3:10"]
    lines = told(GOOD.replace("seed: 1", "seed: x\nseed: 2")).splitlines()  # both are told
    assert [line.split(": ")[0] for line in lines] == ["x.yaml:3:1", "x.yaml:2:7"]


def test_a_sweep_of_a_section_with_a_default_is_right_beside_a_mistake():
    text = TINY.replace("    fit: Fit\n", "    fit: Fit = Fit(optimizer=Adam(kind='adam', "
                        "learning_rate=1.0), num_steps=3)\n")  # fmt: skip
    pathlib.Path("tiny.py").write_text(text)
    (fit,) = [line for line in GOOD.splitlines(True) if line.startswith("fit:")]
    swept = GOOD.replace(fit, "sweep: {fit.num_steps: [1, x]}\n")
    lines = told(swept.replace("seed: 1", "seed: one")).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["seed", "sweep.fit.num_steps[1]"], lines


def test_files_that_are_not_there():
    for path, reason in (("no.yaml", "No such file"), (".", "directory")):
        with pytest.raises(ConfigError, match=rf"^{re.escape(path)}: cannot be .*{reason}"):
            config.load(path)


def test_all_entries_of_a_section_that_are_wrong_are_named():
    limits = {"low": (0.0, 3.0, 5.0), "high": (1.0, 2.0, 4.0)}
    with pytest.raises(ValueError, match="2 validation errors"):
        config.Limits.model_validate(limits)
    with pytest.raises(ValueError, match="2 validation errors"):
        config.Gaussian.model_validate({"loc": (0.0, 0.0), "covariance": ((0.0, 0.0), (0.0,))})


def test_the_seed_has_a_default():
    pathlib.Path("x.yaml").write_text(GOOD.replace("seed: 1\n", ""))
    assert config.load("x.yaml").seed == 0


def test_data_are_found_beside_the_file_first_and_the_run_remembers_where(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "y.yaml").write_text(GOOD.replace("tiny.py", "../tiny.py") + "data: d.csv\n")
    pathlib.Path("d.csv").touch()
    assert config.load("there/y.yaml").data == tmp_path / "d.csv"
    (there / "d.csv").touch()
    tiny = config.load("there/y.yaml")
    assert tiny.data == there / "d.csv"
    assert loaded(config.dump(tiny)) == tiny


OVERRIDES = [
    ("--seed 7", {"seed": 7}),
    ("--seed=7 --shift.num 3", {"seed": 7, "shift": {"num": 3}}),
    ("--limits.low -inf -1 --limits.high 1e-3 inf", {"limits": {"low": (-float("inf"), -1.0)}}),
    ("--fit.optimizer.learning-rate 3", {"fit": {"optimizer": {"learning_rate": 3.0}}}),
    ("--names x 3", {"names": ("x", "3")}),
    ("--names x", {"names": ("x",)}),
    ("--words NA -", {"words": ("NA", "-")}),
    ("--words 3", {"words": ("3",)}),
    ("--pairs a 1 c-d x", {"pairs": {"a": "1", "c-d": "x"}}),
    ("--pairs.a yes", {"pairs": {"a": "yes"}}),
    ("--gaussian.loc [3,4]", {"gaussian": {"loc": (3.0, 4.0)}}),
]


REFUSED = [
    ("--pairs a", "--pairs: needs pairs of a key and a text (got 'a')"),
    ("--sede 3", "--sede: unknown key; did you mean 'seed'? (got 'sede')"),
    ("--limit.low 3", "--limit: unknown key; did you mean 'limits'? (got 'limit')"),
    ("--limits.low 3 3", "--limits.high[0]: must be greater than low, which is 3.0 (got 1.0)"),
    ("--edge.steepness -3", "--edge.steepness: must be greater than 0 (got -3)"),
    ("--seed 1e-3", "--seed: must be a valid integer (got 0.001)"),
    ("--seed", "--seed: needs a value (got nothing)"),
    ("--seed.x 3", "--seed.x: seed has no keys (got ['3'])"),
    ("3", "3: must follow a --key (got '3')"),
    ("--experiment x", "--experiment: cannot be changed, name another config (got 'x')"),
]


def test_the_command_line_replaces_settings_and_is_judged_as_the_file_is(monkeypatch):
    def holds(got, part):
        for key, value in part.items():
            assert holds(got[key], value) if isinstance(value, dict) else got[key] == value, words
        return True

    tiny = loaded(GOOD)
    for words, message in REFUSED:
        with pytest.raises(ConfigError) as caught:
            config.override(tiny, words.split())
        assert str(caught.value) == message
    assert config.override(tiny, ["--edge", "{kind: hard}"]).edge.kind == "hard"
    # What was validated is not written and read again.
    monkeypatch.setattr(yaml, "write", lambda values: pytest.fail("written"))
    assert config.override(tiny, []) is tiny
    for words, expected in OVERRIDES:
        assert holds(config.override(tiny, words.split()).model_dump(), expected)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(string.printable + "é€", max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(["a", "b_c", "on", "null", "1e3"]), plain, max_size=3))
@example({"a": "?0"})
@example({"a": ("- b", ":", "")})
def test_what_is_written_is_read_back(values):
    assert yaml.parse(yaml.write(values)).data == values
    assert yaml.parse("&a low: 1\n&a high: 2\n").data == {"low": 1, "high": 2}


def test_schemas_name_every_key():
    for name in config.names():
        model = type(config.load(ROOT / "configs" / f"{name}.yaml"))
        found = config.schema(name)
        assert set(found["properties"]) == set(model.model_fields)
        assert found["properties"]["experiment"]["const"] == found["title"] == name
    everything = config.schema()
    chosen = [each["$ref"].removeprefix("#/$defs/") for each in everything["oneOf"]]
    assert [everything["$defs"][each]["title"] for each in chosen] == config.names()
    own = config.schema("tiny.py")["properties"]
    assert "names" in own and "const" not in own["experiment"]
    with pytest.raises(ConfigError, match="did you mean 'shift_curve'"):
        config.schema("shiftcurve")


OWN_FILES = [
    ("class Settings(config.Experiment):", "class Setings(config.Experiment):", "a class Settings"),
    (
        "class Settings(config.Experiment):",
        "class Settings:",
        "derived from truncgauss.runs.config",
    ),
    ("def run(settings): ...", "", "needs a function run"),
    ("def plot(results): ...", "plot = 3", "needs a function plot"),
    ("def plot", "deff plot", "cannot be loaded: SyntaxError"),
    ("def plot", "1 / 0\ndef plot", "ZeroDivisionError: division by zero (line 43)"),
    ("def plot", "import nowhere\ndef plot", "No module named 'nowhere' (line 43)"),
    ("def plot", "raise SystemExit\ndef plot", "cannot be loaded: SystemExit (line 43)"),
]


def test_a_file_that_breaks_the_contract_is_told_at_the_line_that_names_it():
    assert "more" not in type(loaded(GOOD)).model_fields
    pathlib.Path("tiny.py").write_text(TINY.replace("    data:", "    more: int = 3\n    data:"))
    assert loaded(GOOD).more == 3  # a file that has changed is read again
    for old, new, message in OWN_FILES:
        assert old in TINY
        pathlib.Path("tiny.py").write_text(TINY.replace(old, new))
        line = told(GOOD)
        assert line.startswith("x.yaml:1:13: experiment: ") and message in line, message
        assert LINE.fullmatch(line), line


def test_a_validator_of_ones_own_names_the_key_that_it_means():
    check = """\
    @pydantic.model_validator(mode="after")
    def _check(self):
        if len(self.names) != 2:
            raise config.problem("must be two", "names", got=self.names)
        if self.seed == 13:
            raise ValueError("not on a Friday")
        return self
"""
    text = "import pydantic\n" + TINY.replace("\n\ndef run", f"\n{check}\n\ndef run")
    pathlib.Path("tiny.py").write_text(text)
    line = told(GOOD.replace("names: [a, b]", "names: [a]"))
    assert line == "x.yaml:12:8: names: must be two (got ['a'])"
    assert "x.yaml:1:1: file: not on a Friday" in told(GOOD.replace("seed: 1", "seed: 13"))


def test_every_shipped_file_is_fine_and_names_its_schema():
    written = json.loads((ROOT / "configs" / "schema.json").read_text())
    assert written == config.schema(), "write it anew: truncgauss schema > configs/schema.json"
    for path in ROOT.glob("configs/*.yaml"):
        shipped = config.load(path)
        assert shipped.experiment == path.stem
        assert loaded(config.dump(shipped)) == shipped, path
        assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n"), path


def test_settings_and_help_do_not_import_jax():
    code = """
import contextlib, io, sys
import truncgauss.runs.config
from truncgauss import cli
shipped = [f"configs/{name}.yaml" for name in truncgauss.runs.config.names()]
for words in (["--help"], ["check", *shipped], ["schema"], ["run", shipped[0], "--help"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        cli.main(words)
print(sorted({"jax", "numpyro", "optax", "matplotlib", "scipy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


# ---------------------------------------------------------------- damage

SHIPPED = [path.read_text() for path in sorted(ROOT.glob("configs/*.yaml"))]
NUM_FILES = int(os.environ.get("TRUNCGAUSS_FUZZ", "4000"))
VALUES = (
    "", "~", "true", "no", "on", "0", "-1", "1e400", "-1e-400", "1_000", "0x1F", "0o17", "1:30:00",
    ".nan", ".inf", "-.inf", "1e3", "5.", "٣", "[]", "{}", "[[]]", "[1, 2", "{a: 1", "'", '"', "|",
    ">-", "? a", ": b", "- c", "!!int x", "!!float .inf", "!!binary aGk=", "!!set {a}", "!!omap []",
    "!!python/object/apply:os.system ['touch owned']", "!!python/name:os.system", "!own {a: 1}",
    "&a [*a]", "*a", "&a 1", "<<: *a", "2001-01-01", "2001-01-01 00:00:00",
    "\x85", "\u2028", "\ufeff",
    "a" * 5000, "9" * 400, "[" * 2000, "{a: " * 300, "- " * 800, "%YAML 9.9", "---", "...", "@x",
    "`x", "\t", "#", "\\", "\\x00", "null", "Null", "é", "💥", "a: b: c", "=",
    "/etc/passwd", "../../x",
)  # fmt: skip
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + k)}: &{chr(98 + k)} [{', '.join([f'*{chr(97 + k)}'] * 9)}]\n" for k in range(8)
)


def damaged(rng: random.Random) -> bytes:
    """A shipped config after one to four accidents or attacks."""
    lines = rng.choice(SHIPPED).splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        line, value, indent = lines[at], rng.choice(VALUES), " " * rng.randint(0, 6)
        start = rng.randint(0, len(line))
        end = rng.choice((start, min(start + 3, len(line)), len(line)))
        inserted = rng.choice((BOMB, "x: 1", "<<: {seed: 2}", "? [a]\n: b", "3: 4"))
        accidents = (
            [""], [line, line], [line.partition(":")[0] + ": " + value], [inserted, line],
            [line.replace((line.split() or [line])[-1], value)], [indent + line.strip()],
            [line[:start] + value + line[end:]], ["".join(rng.sample(line, len(line)))],
            [line.replace(rng.choice("aeiou_:[]{},"), rng.choice("aeiou_:[]{},"))],
        )  # fmt: skip
        lines[at : at + 1] = rng.choice(accidents)
    raw = bytearray("\n".join(lines).encode("utf-8", "surrogatepass"))
    if rng.random() < 0.1:
        place = rng.randint(0, len(raw))
        raw[place:place] = rng.randbytes(rng.randint(1, 8))
    return bytes(raw)


@pytest.mark.parametrize(
    "seeds", [range(150), pytest.param(range(150, NUM_FILES), marks=pytest.mark.slow)], ids=len
)
def test_damaged_configs_are_read_or_refused_in_located_lines(seeds, tmp_path):
    """And nothing is executed."""
    (tmp_path / "data").mkdir()
    refused = 0
    for seed in seeds:
        try:
            loaded(damaged(random.Random(seed)))
        except ConfigError as error:
            refused += 1
            for line in str(error).split("\nx.yaml:"):
                text = line if line.startswith("x.yaml:") else f"x.yaml:{line}"
                assert LINE.fullmatch(text), (seed, text[:300])
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert refused > len(seeds) / 2
    assert {path.name for path in tmp_path.iterdir()} == {"data", "x.yaml", "tiny.py"}
