"""The Python of the README and of docs/ runs and prints what they say; links lead somewhere."""

import ast
import contextlib
import io
import itertools
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
LONG = "# Takes a minute.\n"


def blocks_of(page):
    """Pairs of the language of a block of code and the code."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def pairs_of(page):
    """Python, with what it prints: the block after it."""
    return [
        (code, shown)
        for (kind, code), (next_kind, shown) in itertools.pairwise(blocks_of(page))
        if kind == "python" and next_kind == "text"
    ]


WITH_CODE = [page for page in PAGES if pairs_of(page)]
WITH_LONG_CODE = [page for page in PAGES if LONG in PAGES[page]]


def test_pages_are_found_and_every_python_block_is_followed_by_what_it_prints():
    assert len(WITH_CODE) > 8 and WITH_LONG_CODE
    for page in PAGES:
        assert len(pairs_of(page)) == sum(kind == "python" for kind, _ in blocks_of(page)), page


def without_rounding(text):
    """A text without the digits of rounding errors, and the numbers of steps that depend on them,
    which differ from one JAX or CPU to another."""
    text = re.sub(r"\b\d\.\d+e-1[2-9]\b", "0", text)
    return re.sub(r"(?<=Converged after )\d+(?= steps?\b)", "some", text)


def check_blocks(page, pairs):
    names = {}
    for code, shown in pairs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert without_rounding(printed.getvalue()) == without_rounding(shown)


QUICK = "collisions detection-limits getting-started pymc-stan reading-a-fit rows".split()


@pytest.mark.quick("README.md", *(f"docs/{name}.md" for name in QUICK))
@pytest.mark.parametrize("page", WITH_CODE)
def test_python_blocks_print_what_the_page_says(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    check_blocks(page, ((code, shown) for code, shown in pairs_of(page) if LONG not in code))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_LONG_CODE)
def test_blocks_that_take_a_minute_print_what_the_page_says(page):
    code = "".join(code for code, _ in pairs_of(page))
    imports = "\n".join(re.findall(r"^(?:import|from) .*", code, flags=re.MULTILINE))
    long = [pair for pair in pairs_of(page) if pair[0].startswith(LONG)]
    check_blocks(page, [(imports, ""), *long])


def test_the_broken_config_is_refused_as_the_page_says(tmp_path):
    [(config, shown)] = [
        (config, shown)
        for page in PAGES
        for (kind, config), (_, shown) in itertools.pairwise(blocks_of(page))
        if kind == "yaml"
    ]
    path = tmp_path / "my.yaml"
    path.write_text(config)
    command = [sys.executable, "-m", "truncgauss.cli", "check", "my.yaml"]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == shown


def links_of(page):
    """Files that a page links to."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[\w-]+)?\)", PAGES[page])
    return sorted({(ROOT / page).parent / link for link in links})


def test_links_lead_somewhere_and_a_reader_of_the_readme_to_every_page():
    broken = {page: [str(x) for x in links_of(page) if not x.exists()] for page in PAGES}
    assert not any(broken.values()), broken
    reached, next_pages = set(), {"README.md"}
    while next_pages:
        reached |= next_pages
        links = {link.resolve() for page in next_pages for link in links_of(page)}
        next_pages = {page for page in PAGES if (ROOT / page) in links} - reached
    assert reached == set(PAGES)


def test_the_readme_is_short_and_a_figure_of_the_gallery_has_thirty_lines():
    assert len(PAGES["README.md"].splitlines()) <= 120
    assert all(len(code.splitlines()) <= 30 for code, _ in pairs_of("docs/gallery.md"))


def test_the_stops_through_the_core_name_files_functions_and_nouns_that_exist():
    """Each has a line of code, which stands in the function of which it says so."""
    page = PAGES["docs/how-it-works.md"].partition("## Algorithms")[0]
    stops = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    assert [stop.partition(".")[0] for stop in stops] == [str(k) for k in range(1, 13)]
    kinds = ast.FunctionDef | ast.ClassDef
    for stop in stops:
        names = re.findall(r"`([\w/]+(?:\.py|/))`", stop)
        folders = [ROOT / "truncgauss" / name for name in names]
        files = [x for path in folders for x in ([path] if path.suffix else path.glob("*.py"))]
        text = "".join(path.read_text() for path in files)
        nodes = [x for x in ast.walk(ast.parse(text)) if isinstance(x, kinds)]
        ((function, line),) = re.findall(r"^In `(\w+)`.*:\n\n    (.+)$", stop, flags=re.MULTILINE)
        bodies = [ast.get_source_segment(text, x) for x in nodes if x.name == function]
        assert any(f"{line}\n" in f"{body}\n" for body in bodies), stop
        nouns = {noun for noun in re.findall(r"`([A-Z]\w+)`", stop) if noun != noun.upper()}
        assert nouns <= set(re.findall(r"\b\w+\b", text)), stop
