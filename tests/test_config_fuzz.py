"""Damaged configs by the thousand: each is read, or refused in located lines; nothing is executed.

`TRUNCGAUSS_FUZZ=100000` tries as many as that.
"""

import os
import pathlib
import random
import re

import pytest

from truncgauss.runs import config
from truncgauss.runs.config import ConfigError

ROOT = pathlib.Path(__file__).parents[1]
SHIPPED = [path.read_text() for path in sorted(ROOT.glob("configs/*.yaml"))]
NUM_FILES = int(os.environ.get("TRUNCGAUSS_FUZZ", "4000"))
LINE = re.compile(r"[^:]+:\d+:\d+: \S.*: .+ \(got .+\)", re.DOTALL)

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
        kind = rng.randrange(9)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 2:
            lines[at] = lines[at].partition(":")[0] + ": " + rng.choice(VALUES)
        elif kind == 3:
            lines[at] = re.sub(r"[\w.+-]+", lambda _: rng.choice(VALUES), lines[at], count=1)
        elif kind == 4:
            lines[at] = " " * rng.randint(0, 6) + lines[at].strip()
        elif kind == 5:
            lines.insert(at, rng.choice((BOMB, "x: 1", "<<: {seed: 2}", "? [a]\n: b", "3: 4")))
        elif kind == 6:
            place = rng.randint(0, len(lines[at]))
            lines[at] = lines[at][:place] + rng.choice(VALUES) + lines[at][place:]
        elif kind == 7:
            lines[at] = "".join(rng.sample(lines[at], len(lines[at])))
        else:
            lines[at] = lines[at].replace(rng.choice("aeiou_:[]{},"), rng.choice("aeiou_:[]{},"))
    raw = bytearray("\n".join(lines).encode("utf-8", "surrogatepass"))
    if rng.random() < 0.1:
        place = rng.randint(0, len(raw))
        raw[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
    return bytes(raw)


@pytest.mark.slow
def test_damaged_configs_are_read_or_refused_in_located_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    path, refused = pathlib.Path("x.yaml"), 0
    for seed in range(NUM_FILES):
        raw = damaged(random.Random(seed))
        path.write_bytes(raw)
        try:
            config.load(path)
        except ConfigError as error:
            refused += 1
            for line in str(error).split("\nx.yaml:"):
                text = line if line.startswith("x.yaml:") else f"x.yaml:{line}"
                assert LINE.fullmatch(text), (seed, text[:300])
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert refused > NUM_FILES / 2
    assert {path.name for path in tmp_path.iterdir()} == {"data", "x.yaml"}
