"""The README's code runs and prints what it says; its config is refused as it says."""

import contextlib
import io
import itertools
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
COMMAND = "from truncgauss.cli import main; raise SystemExit(main())"
PAIRS = [
    (code, shown)
    for (kind, code), (next_kind, shown) in itertools.pairwise(BLOCKS)
    if kind == "python" and next_kind == "text"
]


def test_every_python_block_is_followed_by_what_it_prints():
    assert len(PAIRS) == sum(kind == "python" for kind, _ in BLOCKS) >= 2


LONG = "# Takes a minute.\n"


def check_blocks(pairs):
    names = {}
    for code, shown in pairs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert printed.getvalue() == shown


def test_python_blocks_print_what_the_readme_says():
    check_blocks((code, shown) for code, shown in PAIRS if not code.startswith(LONG))


@pytest.mark.slow
def test_blocks_that_take_a_minute_print_what_the_readme_says():
    code = "".join(code for code, _ in PAIRS)
    imports = "\n".join(re.findall(r"^(?:import|from) .*", code, flags=re.MULTILINE))
    check_blocks([(imports, ""), *(pair for pair in PAIRS if pair[0].startswith(LONG))])


def test_the_broken_config_is_refused_as_the_readme_says(tmp_path):
    [(config, shown)] = [
        (config, shown)
        for (kind, config), (_, shown) in itertools.pairwise(BLOCKS)
        if kind == "yaml"
    ]
    path = tmp_path / "my.yaml"
    path.write_text(config)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "check", "my.yaml"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == shown


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()
