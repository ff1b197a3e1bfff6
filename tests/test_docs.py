"""The documentation builds, is whole without a network, and a broken link is an error."""

import inspect
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Sequence

import pytest
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real
from matplotlib.axes import Axes

import truncgauss as tg

ROOT = pathlib.Path(__file__).parents[1]
BUILDER = runpy.run_path(str(ROOT / ".ci" / "docs.py"))


def test_formulas_become_mathml_and_examples_code():
    formulas = BUILDER["Formulas"]()
    docstring = (
        "One.\n\n.. math:: a_b * c\n    + d\n\nWith :math:`x^2`.\n\nExample:\n    >>> 1 + 1\n    2"
    )
    text = formulas.hidden(docstring)
    assert text == (
        "One.\n\nFORMULA0END\n\n\nWith FORMULA1END.\n\nExample:\n"
        "    ```python\n    >>> 1 + 1\n    2\n    ```"
    )
    shown = formulas.shown(text)
    assert shown.count("<math") == 2 and 'display="block"' in shown
    assert "<msub><mi>a</mi><mi>b</mi></msub>" in shown


def test_a_formula_that_is_not_understood_is_an_error():
    with pytest.raises(BUILDER["BuildError"], match="unheardof"):
        BUILDER["Formulas"]().hidden(r".. math:: \unheardof{x}")


def test_dollars_of_a_page_are_formulas_except_in_code():
    formulas = BUILDER["Formulas"]()
    page = "With $x^2$ and `$y`.\n\n```sh\necho $HOME $USER\n```\n\n$$\n\\int f\n$$\n"
    text = formulas.hidden_in_page(page)
    assert text == ("With FORMULA0END and `$y`.\n\n```sh\necho $HOME $USER\n```\n\nFORMULA1END\n")
    assert 'display="block"' in formulas.shown(text)


def test_names_in_pages_lead_to_the_reference(tmp_path):
    entries = '<section id="Box"></section><section id="Box.contains"></section>'
    (tmp_path / "truncgauss.html").write_text(entries)
    (tmp_path / "truncgauss").mkdir()
    (tmp_path / "truncgauss" / "special.html").write_text('<section id="ndtr"></section>')
    linked = lambda body: BUILDER["linked_names"](body, "docs/page.md", tmp_path)
    assert linked("<code>tg.Box(low, high)</code>") == (
        '<a href="truncgauss.html#Box"><code>tg.Box(low, high)</code></a>'
    )
    assert 'href="truncgauss.html#Box.contains"' in linked("<code>tg.Box.contains</code>")
    assert 'href="truncgauss/special.html#ndtr"' in linked("<code>tg.special.ndtr</code>")
    span = '<span class="n">tg</span><span class="o">.</span><span class="n">Box</span>'
    assert linked(span) == f'<a href="truncgauss.html#Box">{span}</a>'
    assert linked('<a href="x"><code>tg.Box</code></a>') == '<a href="x"><code>tg.Box</code></a>'
    with pytest.raises(BUILDER["BuildError"], match=r"docs/page.md names tg.Bix"):
        linked("<code>tg.Bix</code>")


@pytest.mark.parametrize(
    "body, said",
    [
        ('<a href="b.html#here">', ""),
        ('<a href="https://example.org/">', ""),
        ('<img src="data:image/png;base64,AA">', ""),
        ('<a href="c.html">', "no such page: c.html"),
        ('<a href="b.html#there">', "no such place: b.html#there"),
        ('<img class="x" src="missing.png">', "no such page: missing.png"),
        ('<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "loads //example.org/a.css"),
    ],
)
def test_broken_links_are_found(tmp_path, body, said):
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<p id="here">')
    assert BUILDER["broken_links"](tmp_path) == ([f"a.html: {said}"] if said else [])


@pytest.mark.parametrize(
    "annotation, shown",
    [
        (Float[Array, "*batch d"], "Float[Array, '*batch d']"),
        (Real[ArrayLike, "*shape"], "Real[ArrayLike, '*shape']"),
        (Real[ArrayLike, "d"] | Sequence[int], "Real[ArrayLike, 'd'] | Sequence[int]"),
        (tg.Region | None, "Region | None"),
        (Axes | None, "Axes | None"),
        (int, "int"),
    ],
)
def test_annotations_are_shown_as_they_are_written(annotation, shown):
    assert BUILDER["readable"](inspect.formatannotation(annotation)) == shown


@pytest.mark.slow  # renders every public docstring
def test_the_site_builds_with_every_public_name_figure_and_link(tmp_path):
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "docs.py", site, "--no-run"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    reference = (site / "truncgauss.html").read_text()
    for name in set(tg.__all__) - {"__version__"}:
        if home := tg._MODULES.get(name):
            assert (site / f"{home.replace('.', '/')}.html").exists(), f"{name} has no page"
        else:
            assert f'id="{name}"' in reference, f"{name} is not in the reference"
    assert "<math" in reference and "FORMULA" not in reference
    special = (site / "truncgauss" / "special.html").read_text()
    assert "Union" not in special and "Alias for field" not in special
    assert 'href="../gallery.html"' in special and "max-width:100%" in special.replace(" ", "")
    plotting = (site / "truncgauss" / "plotting.html").read_text()
    assert "inverted" in plotting.partition('id="points"')[2].partition("</section>")[0]
    gallery = (site / "gallery.html").read_text()
    for figure in (ROOT / "figures").glob("*.[pg][ni][gf]"):
        assert f'src="figures/{figure.name}"' in gallery
    assert "Truncated" in (site / "index.html").read_text()
    assert 'href="truncgauss.html#log_probability"' in (site / "which-function.html").read_text()
    assert '"Detection limits: ' in (site / "search.js").read_text()
