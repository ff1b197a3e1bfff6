"""The documentation builds, has every public name, and loads nothing from elsewhere."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
from mkdocs.exceptions import PluginError

import truncgauss as tg

ROOT = pathlib.Path(__file__).parents[1]
SITE = ROOT / ".ci" / "site"
HOOKS = runpy.run_path(str(SITE / "hooks.py"))
NOTEBOOK = runpy.run_path(str(SITE / "notebooks.py"))
REFERENCE = {page.name: page.read_text() for page in (ROOT / "docs/reference").glob("*.md")}


def test_every_public_name_is_in_the_reference():
    shown = set(re.findall(r"^::: truncgauss\.(\w+)", "".join(REFERENCE.values()), re.MULTILINE))
    modules = {"edges", "likelihood", "probability", "regions"}  # whose names stand by themselves
    assert set(tg.__all__) - {"__version__"} - modules <= shown
    whole = set(re.findall(r"^::: truncgauss\.fitting\.(\w+)", "".join(REFERENCE.values()), re.M))
    assert set(tg.fitting.__all__) <= whole | shown


def test_every_page_is_in_the_navigation():
    navigation = (SITE / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = set(re.findall(r"[\w/-]+\.md", navigation))
    assert listed == pages | set(HOOKS["PAGES"].values()) - {"code-of-conduct.md"}


def test_links_lead_to_pages_of_the_site_and_broken_ones_are_errors():
    moved = HOOKS["relinked"]
    code = moved("[a](../configs/tobin.yaml)", "docs/tails.md", "tails.md")
    assert code == "[a](source/configs/tobin.yaml.md)"
    with pytest.raises(PluginError, match="docs/tails.md: there is no docs/tales.md"):
        moved("[a](tales.md)", "docs/tails.md", "tails.md")


@pytest.mark.parametrize("name", NOTEBOOK["NOTEBOOKS"])
def test_a_notebook_has_the_code_of_its_page_and_what_it_prints(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    pairs = re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", page, re.M | re.S)
    made = json.loads(NOTEBOOK["written"](page))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 4) and pairs
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) + "\n" for cell in cells] == [code for code, _ in pairs]
    printed = ["".join(out["text"]) for cell in cells for out in cell["outputs"]]
    assert printed == [text for _, text in pairs if text]
    prose = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown"]
    assert prose[0].startswith("# ") and not any("```python" in text for text in prose)


@pytest.mark.full
def test_a_notebook_runs_in_an_empty_folder_and_prints_what_it_says(tmp_path):
    command = [sys.executable, SITE / "notebooks.py", tmp_path / "all"]
    subprocess.run(command, check=True, timeout=100)
    assert {path.stem for path in (tmp_path / "all").iterdir()} == {*NOTEBOOK["NOTEBOOKS"]}
    made = json.loads((tmp_path / "all" / "detection-limits.ipynb").read_text())
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    told = "".join("".join(out["text"]) for cell in cells for out in cell["outputs"])
    digits = lambda text: re.sub(r"\d\.\d+e-1\d|\d+(?= steps)", "", text)
    assert digits(done.stdout) == digits(told)


@pytest.mark.full
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    """Strictly: broken links, anchors and names of the reference are errors."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-f", SITE / "mkdocs.yml", "-d", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 60
    assert {"site.css", "site.js"} <= {path.name for path in tmp_path.iterdir()}
    for name, text in pages.items():
        outside = re.findall(r'(?:<script[^>]*src|<img[^>]*src)="(?:https?:)?//[^"]*"', text)
        outside += re.findall(r'<link rel="stylesheet" href="(?:https?:)?//[^"]*"', text)
        assert not outside, (name, outside)
    for name in NOTEBOOK["NOTEBOOKS"]:
        assert f'href="notebooks/{name}.ipynb"' in pages[pathlib.Path(f"{name}.html")]
        cells = json.loads((tmp_path / "notebooks" / f"{name}.ipynb").read_text())["cells"]
        text = "".join("".join(cell["source"]) for cell in cells)
        links = re.findall(r"\]\((?!https?:)([^)\s#]+)", text)
        assert all((tmp_path / "notebooks" / link).exists() for link in links), (name, links)
    probabilities = pages[pathlib.Path("reference/probabilities.html")]
    assert "<msub>" in probabilities and ":math:" not in probabilities
    assert "Example:" not in probabilities and "\\(" not in probabilities
    assert re.search(r'href="[^"]*#truncgauss.Box"[^>]*><code>tg\.Box', "".join(pages.values()))
    gallery = pages[pathlib.Path("gallery.html")]
    for figure in (ROOT / "figures").glob("*.[pg][ni][gf]"):
        assert f'src="figures/{figure.name}"' in gallery
    searched = (tmp_path / "search" / "search_index.json").read_text()
    for word in "pmvnorm lmer clmm Tobit censReg heckprobit GHK mvncdf LOD".split():
        assert word in searched, word
