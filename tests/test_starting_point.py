"""The files that `truncgauss new` writes, in a checkout and from an installed package."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import pytest

from truncgauss import cli
from truncgauss.runs import config

ROOT = pathlib.Path(__file__).parents[1]


def schema_of(path):
    """The file that the first line of a config names, which must be there."""
    uri = re.match(r"# yaml-language-server: \$schema=file://(\S+)\n", path.read_text())
    assert uri, path.read_text()[:100]
    return pathlib.Path(urllib.parse.unquote(uri[1])).resolve(strict=True)


@pytest.mark.parametrize("name", config.names())
def test_every_built_in_config_can_be_written_out(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", name]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"To run it: truncgauss run {name}.yaml"
    assert schema_of(tmp_path / f"{name}.yaml") == ROOT / "configs" / "schema.json"
    written, shipped = config.load(f"{name}.yaml"), config.load(ROOT / "configs" / f"{name}.yaml")
    assert all(path.parent == tmp_path for path in config.files(written))
    for copy, original in zip(config.files(written), config.files(shipped), strict=True):
        assert copy.read_bytes() == original.read_bytes()
    if not config.files(shipped):
        assert written == shipped
    before = (tmp_path / f"{name}.yaml").read_text()
    assert cli.main(["new", name]) == 2
    assert f"{name}.yaml is there already" in capsys.readouterr().err
    assert (tmp_path / f"{name}.yaml").read_text() == before


def test_an_installed_package_writes_a_config_that_is_fine(tmp_path):
    inside = tmp_path / "site packages" / "truncgauss"  # as pyproject.toml arranges a wheel
    shutil.copytree(ROOT / "truncgauss", inside, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("experiments", "configs"):
        shutil.copytree(ROOT / name, inside / name)
    (work := tmp_path / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(inside.parent)}
    for words in (["new", "fit_table"], ["check", "fit_table.yaml"]):
        done = subprocess.run(
            [sys.executable, "-m", "truncgauss.cli", *words],
            cwd=work, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, done
    assert done.stdout == "fit_table.yaml: fine, fit_table\n"
    assert schema_of(work / "fit_table.yaml").parent == inside / "configs"


def test_a_config_that_was_copied_away_from_its_schema_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "configs" / "shift_curve.yaml", "my.yaml")
    assert cli.main(["check", "my.yaml"]) == 0
    told = capsys.readouterr()
    assert told.out == "my.yaml: fine, shift_curve\n"
    assert told.err.startswith("my.yaml:1: editors do not find the schema schema.json; write # ")
    text = pathlib.Path("my.yaml").read_text().partition("\n")[2]
    line = told.err.partition("; write ")[2]
    pathlib.Path("my.yaml").write_text(line + text)
    schema_of(pathlib.Path("my.yaml"))
    assert cli.main(["check", "my.yaml", str(ROOT / "configs" / "shift_curve.yaml")]) == 0
    assert not capsys.readouterr().err


def test_the_config_of_a_run_names_its_schema(tmp_path):
    shipped = config.load(ROOT / "configs" / "shift_curve.yaml")
    text = config.with_schema(config.dump(shipped), "shift_curve")
    (tmp_path / "config.yaml").write_text(text)
    schema_of(tmp_path / "config.yaml")
    assert config.load(tmp_path / "config.yaml") == shipped
    assert config.with_schema(text, "shift_curve") == text
    assert config.with_schema(text, "mine.py") == config.dump(shipped)
