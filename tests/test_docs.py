"""The documentation builds, has every public name, and loads nothing from elsewhere."""

import os
import pathlib
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import griffe
import pytest
from mkdocs.exceptions import PluginError

import truncgauss as tg

ROOT = pathlib.Path(__file__).parents[1]
SITE = ROOT / ".ci" / "site"
HOOKS = runpy.run_path(str(SITE / "hooks.py"))
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


def test_formulas_and_examples_of_docstrings():
    text = (
        "One.\n\n.. math:: a_b * c\n    + d\n\nWith :math:`x^2`.\n\nExample:\n    >>> 1 + 1\n    2"
    )
    entry = SimpleNamespace(docstring=griffe.Docstring(text))
    HOOKS["Docstrings"]().on_instance(obj=entry)
    assert entry.docstring.value == (
        "One.\n\n$$\na_b * c\n    + d\n$$\n\nWith $x^2$.\n\nExamples:\n    >>> 1 + 1\n    2"
    )
    shown = HOOKS["on_page_content"](r'<p><span class="arithmatex">\(x_1 &lt; 2\)</span></p>')
    assert shown.startswith("<p><math") and "<msub><mi>x</mi><mn>1</mn></msub>" in shown


def test_links_lead_to_pages_of_the_site_and_broken_ones_are_errors():
    moved = HOOKS["relinked"]
    assert moved("[a](docs/tails.md#b)", "README.md", "index.md") == "[a](tails.md#b)"
    assert moved("[a](../README.md)", "docs/tails.md", "tails.md") == "[a](index.md)"
    assert moved("[a](https://a.b/c)", "docs/tails.md", "tails.md") == "[a](https://a.b/c)"
    code = moved("[a](../configs/tobin.yaml)", "docs/tails.md", "tails.md")
    assert code == "[a](source/configs/tobin.yaml.md)"
    with pytest.raises(PluginError, match="docs/tails.md: there is no docs/tales.md"):
        moved("[a](tales.md)", "docs/tails.md", "tails.md")


def test_names_in_pages_lead_to_the_reference():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tails.md", generated_by=None))
    text = "`tg.Box(low, high)` and `tg.safe.bump`\n\n```python\nx = `tg.Box`\n```\n"
    assert HOOKS["on_page_markdown"](text, page=page) == (
        "[`tg.Box(low, high)`][truncgauss.Box] and [`tg.safe.bump`][truncgauss.safe.bump]\n\n"
        "```python\nx = `tg.Box`\n```\n"
    )


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
    for name, text in pages.items():
        outside = re.findall(r'(?:<script[^>]*src|<img[^>]*src)="(?:https?:)?//[^"]*"', text)
        outside += re.findall(r'<link rel="stylesheet" href="(?:https?:)?//[^"]*"', text)
        assert not outside, (name, outside)
    probabilities = pages[pathlib.Path("reference/probabilities.html")]
    assert "<math" in probabilities and ":math:" not in probabilities
    gallery = pages[pathlib.Path("gallery.html")]
    for figure in (ROOT / "figures").glob("*.[pg][ni][gf]"):
        assert f'src="figures/{figure.name}"' in gallery
    searched = (tmp_path / "search" / "search_index.json").read_text()
    for word in (
        "pmvnorm",
        "lmer",
        "clmm",
        "Tobit",
        "censReg",
        "heckprobit",
        "GHK",
        "mvncdf",
        "LOD",
    ):
        assert word in searched
