"""A release: the recipe for conda-forge, the workflows, and the version with its changes."""

import json
import pathlib
import re
import runpy
import tomllib

import jax
import pytest
from ruamel.yaml import YAML

from truncgauss.arrays import importing

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_recipe_has_the_dependencies_of_the_package(tmp_path):
    sdist = tmp_path / "truncgauss-9.8.7.tar.gz"
    sdist.write_bytes(b"an sdist")
    text = runpy.run_path(str(ROOT / ".ci" / "release.py"))["recipe"](sdist)
    assert not re.search(r"@[A-Z]", text)
    recipe = YAML(typ="safe").load(text)
    assert recipe["context"]["version"] == "9.8.7" and len(recipe["source"]["sha256"]) == 64
    names = {want.split()[0].removesuffix("-base") for want in recipe["requirements"]["run"]}
    assert names == {"python", *(re.match(r"[\w.-]+", x)[0] for x in PROJECT["dependencies"])}


def test_no_dependency_has_an_upper_bound_and_the_series_of_jax_are_those_of_the_pins():
    wanted = PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])
    assert not [want for want in wanted if re.search(r"<|~=|==", want)]
    pins = re.findall(r"^jax==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    series = sorted(tuple(map(int, pin.split(".")[:2])) for pin in pins)
    assert series == [*importing.TRIED_JAX]


def test_a_series_of_jax_that_was_not_tried_is_named_where_an_import_fails(monkeypatch, tmp_path):
    (tmp_path / "uses_what_is_gone.py").write_text("import jax\njax.what_is_gone\n")
    (tmp_path / "imports_what_is_gone.py").write_text("from jax.core import what_is_gone\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, kind in (("uses", AttributeError), ("imports", ImportError)):
        with pytest.raises(kind, match="what_is_gone") as raised:
            importing.imported(f"{name}_what_is_gone")
        assert "tried" not in str(raised.value)  # of a series that was
    for version in ("9.1.2", "0.9.0", "0.13.0.dev20270101"):
        monkeypatch.setattr(jax, "__version__", version)
        for name in ("uses", "imports"):
            with pytest.raises(ImportError, match=f"tried with JAX 0.10 to 0.12, .* {version}: "):
                importing.imported(f"{name}_what_is_gone")
        assert importing.imported("json") is json  # what works is no error


def test_zenodo_and_the_citation_say_the_same():
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    citation = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())
    for theirs, ours in (("title", "title"), ("keywords", "keywords"), ("license", "license")):
        assert zenodo[theirs] == citation[ours]
    assert zenodo["description"] == citation["abstract"] and zenodo["upload_type"] == "software"
    assert [x["name"] for x in zenodo["creators"]] == [x["name"] for x in citation["authors"]]


def test_the_version_of_the_package_has_its_changes_and_citation():
    import truncgauss as tg

    [version] = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == tg.__version__
    versions = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == "Unreleased" and versions[1].split()[0] == tg.__version__


def test_workflows_ask_for_no_more_than_they_need():
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in WORKFLOWS:
        workflow = YAML(typ="safe").load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path
        for name, job in workflow["jobs"].items():
            assert job["timeout-minutes"] <= (150 if path.stem == "slow" else 60), (path, name)
            runs = "\n".join(step.get("run", "") for step in job["steps"])
            assert {*re.findall(r"\bmake ([a-z][a-z0-9-]*)", runs)} <= {*targets}, (path, name)


def test_what_is_published_is_what_was_tried_and_by_no_stored_password():
    [path] = [path for path in WORKFLOWS if path.stem == "release"]
    workflow = YAML(typ="safe").load(path.read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "make release" in " ".join(step.get("run", "") for step in build["steps"])
    assert publish["needs"] == "build" and publish["environment"]["name"] == "pypi"
    assert publish["permissions"] == {"id-token": "write", "attestations": "write"}
    assert not any("password" in step.get("with", {}) for step in publish["steps"])


def test_the_paper_has_the_table_of_the_documentation_and_all_that_it_cites():
    folder = ROOT / "docs" / "paper"
    paper, methods = (path.read_text() for path in (folder / "paper.md", ROOT / "docs/methods.md"))
    known = re.findall(r"^@\w+\{(\w+),", (folder / "paper.bib").read_text(), re.MULTILINE)
    assert set(re.findall(r"@(\w+)", paper.partition("---\n\n")[2])) == set(known)
    for link in re.findall(r"\]\(([^):]+)\)", paper):
        assert (folder / link).exists(), link
    figures = {tuple(row.split("|")[2:]) for row in rows_of(paper)}
    assert len(figures) == 6 and figures <= {tuple(row.split("|")[2:]) for row in rows_of(methods)}


def rows_of(page):
    """The rows of a table whose second column is a number below 0."""
    return re.findall(r"^\|[^|]+\| -\d[^\n]*$", page, re.MULTILINE)
