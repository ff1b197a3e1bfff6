"""Builds the documentation as a static site that needs no network, and fails on a broken link.

    python .ci/docs.py site

The README is the front page, and docs/ has a page for every job; the API reference comes from the
docstrings by pdoc; docs/gallery.md has the figures that thirty lines draw, and after them those
of the experiments; what these pages link to is shown as source. Formulas become MathML, which
browsers draw without a script. `tg.name` in a page leads to its entry of the reference, and must
exist there; one index is searched for sections of pages and for entries. The code of the pages is
run, and a table says how long that took; `--no-run` leaves it out. `--draw` renews docs/gallery.
"""

import functools
import html
import inspect
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

import jax
import latex2mathml.converter
import pdoc
import pygments
import pygments.formatters
import pygments.lexers
import pygments.util

import truncgauss

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Beside the public modules, those with the contracts that a user's own classes meet.
CONTRACTS = ("truncgauss.gaussian.covariances", "truncgauss.probability.method")
PAGE = """
{% extends "frame.html.jinja2" %}
{% block title %}{{ title }}{% endblock %}
{% block nav %}
    <h2>truncgauss {{ version }}</h2>
    <input type="search" placeholder="Search..." role="searchbox" aria-label="search"
           pattern=".+" required>
    <ul>{% for text, link in contents %}<li><a href="{{ up }}{{ link }}"
        {%- if link == name %} aria-current="page"{% endif %}>{{ text }}</a></li>
    {% endfor %}</ul>
    <footer>{{ footer_text }}</footer>
{% endblock %}
{% block content %}<main class="pdoc"><section class="module-info"><div class="docstring">
{{ body | safe }}
</div></section></main>{% include "search.html.jinja2" %}{% endblock %}
"""
# The pages of docs/ in the order in which a reader meets them, with their titles.
GUIDE = {
    "getting-started": "Getting started",
    "which-function": "Which function?",
    "rows": "Rows known in part",
    "regression": "Regression and tables",
    "selection": "Selection models",
    "repeated-measures": "Repeated and related rows",
    "ordinal": "Ordered categories",
    "simultaneous": "Simultaneous inference",
    "econometrics": "Econometrics",
    "detection-limits": "Detection limits",
    "mixtures": "Mixtures",
    "astronomy": "Astronomy",
    "reading-a-fit": "Reading a fit",
    "after-a-fit": "What follows from a fit",
    "soft-limits": "Soft limits",
    "draws": "Draws and moments",
    "tails": "Quadratic forms and the outside",
    "numpyro": "NumPyro",
    "pymc-stan": "PyMC and Stan",
    "optimisation": "Optimisation",
    "collisions": "Collision probabilities",
    "methods": "Which method?",
    "benchmarks": "Benchmarks",
    "gradients": "NaN gradients",
    "errors": "Errors and their cures",
    "speed": "Speed",
    "clusters": "On a cluster",
    "experiments": "Experiments",
    "other-programs": "Other programs",
    "coming-from": "If you come from ...",
    "how-it-works": "How it works",
    "gallery": "Gallery",
}
CONTENTS = [
    ("Home", "index.html"),
    *((title, f"{name}.html") for name, title in GUIDE.items()),
    ("API", "truncgauss.html"),
    ("Changes", "changes.html"),
    ("Contributing", "contributing.html"),
]
WRITTEN = {
    "README.md": "index.html",
    **{f"docs/{name}.md": f"{name}.html" for name in GUIDE},
    "CHANGELOG.md": "changes.html",
    ".github/CONTRIBUTING.md": "contributing.html",
}
DISPLAY = re.compile(
    r"^( *)\.\. math::((?:.*\n?)(?:\1 +\S.*\n?|[ \t]*\n(?=\1 +\S))*)", re.MULTILINE
)
INLINE = re.compile(r":math:`([^`]+)`")
# Formulas of pages, between dollars as GitHub shows them; what is in a block of code is none.
DOLLARS = re.compile(r"(^```.*?^```|`[^`]*`)|\$\$(.+?)\$\$|\$([^$\n]+)\$", re.MULTILINE | re.DOTALL)
# A public name in a line of text or of highlighted code; what is a link already stays.
NAMED = re.compile(
    r"(<a [^>]*>.*?</a>)|<code>(tg((?:\.[A-Za-z_]\w*)+).*?)</code>"
    r'|(<span class="n">tg</span>((?:<span class="o">\.</span><span class="n">\w+</span>)+))',
    re.DOTALL,
)
SECTION = re.compile(r'(?=<h[12] id="[^"]+">)')
EXAMPLE = re.compile(r"^( *)>>> (?:.*\n?)(?:\1\S.*(?:\n|$))*", re.MULTILINE)
TOKEN = re.compile(r"FORMULA(\d+)END")
# In the search of pdoc, which looks for every "of" among the names; and without stop words.
ASKED = "searchIndex.search(term,"
WORDS_ASKED = (
    "searchIndex.search(elasticlunr.tokenizer(term).filter(elasticlunr.stopWordFilter).join(' '),"
)
BUILT_IN = ("@staticmethod", "@classmethod", "@property", "@functools.")
ARRAY_LIKE = re.compile(
    r"jaxtyping\.(\w+)\[(?:(?:jax\.)?jaxlib\._jax\.)?Array, '([^']*)'\], "
    r"jaxtyping\.\1\[ndarray, '\2'\]"
    r"(?:, (?:numpy\.number|numpy\.bool_?|bool|int|float|complex))*"
)


class BuildError(Exception):
    """The site cannot be built as it should be."""


# --- Docstrings -----------------------------------------------------------------------------------


class Formulas:
    """Formulas of docstrings, out of the way of Markdown: a token in the text stands for each."""

    def __init__(self) -> None:
        self.mathml: list[str] = []

    def kept(self, latex: str, display: str) -> str:
        found = latex2mathml.converter.convert(" ".join(latex.split()), display=display)
        if "\\" in found or "merror" in found:
            raise BuildError(f"no MathML for the formula {latex.strip()!r}")
        self.mathml.append(found)
        return f"FORMULA{len(self.mathml) - 1}END"

    def hidden(self, docstring: str) -> str:
        """The docstring with tokens for its formulas, and its examples as blocks of code."""
        text = DISPLAY.sub(
            lambda m: f"{m[1]}{self.kept(m[2], 'block')}\n{m[1]}\n", docstring.rstrip() + "\n"
        )
        text = INLINE.sub(lambda m: self.kept(m[1], "inline"), text)
        return EXAMPLE.sub(
            lambda m: f"{m[1]}```python\n{m[0].rstrip()}\n{m[1]}```\n", text
        ).rstrip()

    def hidden_in_page(self, markdown: str) -> str:
        """A page with tokens for the formulas between its dollars."""

        def token(m: re.Match[str]) -> str:
            return m[1] or self.kept(m[2] or m[3], "block" if m[2] else "inline")

        return DOLLARS.sub(token, markdown)

    def shown(self, page: str) -> str:
        return TOKEN.sub(lambda m: self.mathml[int(m[1])], page)


class Words:
    """An annotation that is shown as it is written here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def readable(annotation: str) -> str:
    """An annotation as it was written: `Union[jaxtyping.Real[...], ...]` is `Real[ArrayLike, ...]`.

    Aliases such as `ArrayLike` are spelt out when they meet jaxtyping, and names bring the modules
    where they are defined.
    """
    text = ARRAY_LIKE.sub(r"\1[ArrayLike, '\2']", annotation)
    text = re.sub(
        r"\b(?:jaxtyping|jax\.jaxlib\._jax|jaxlib\._jax|typing|collections\.abc)\.", "", text
    )
    text = re.sub(r"\b(?:truncgauss|matplotlib)(?:\.\w+)*\.(\w+)", r"\1", text)
    while found := re.search(r"\bUnion\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", text):
        parts = re.findall(r"(?:[^\[\],]|\[[^\[\]]*\])+", found[1])
        text = text.replace(found[0], " | ".join(part.strip() for part in parts))
    return text


def formatted(signature: inspect.Signature, colon: bool) -> str:
    """A signature as HTML, its annotations readable."""

    def words(annotation: object) -> object:
        if annotation is inspect.Signature.empty:
            return annotation
        return Words(readable(inspect.formatannotation(annotation)))

    parameters = [p.replace(annotation=words(p.annotation)) for p in signature.parameters.values()]
    returned = words(signature.return_annotation)
    shown = signature.replace(parameters=parameters, return_annotation=returned)
    return pdoc.render_helpers.format_signature(shown, colon)


def prepared(entry: pdoc.doc.Doc, formulas: Formulas, seen: set[int]) -> None:
    """Take the formulas out of the docstrings of an entry and all that it contains.

    What named tuples say of their fields by themselves is left out: the class's docstring does.
    """
    if id(entry) in seen:
        return
    seen.add(id(entry))
    by_itself = re.match(r"(Alias for field number|Create new instance of) ", entry.docstring)
    vars(entry)["docstring"] = "" if by_itself else formulas.hidden(entry.docstring)
    if isinstance(entry, pdoc.doc.Function | pdoc.doc.Class):  # ours change no call
        kept = [name for name in entry.decorators if name.startswith(BUILT_IN)]
        vars(entry)["decorators"] = kept
    # What a decorator adds to a function's arguments; pdoc looks below it.
    public = vars(sys.modules[entry.modulename]).get(entry.qualname)
    if isinstance(entry, pdoc.doc.Function) and "__signature__" in getattr(public, "__dict__", {}):
        vars(entry)["signature"] = inspect.signature(public)
    if isinstance(entry, pdoc.doc.Variable):
        vars(entry)["annotation_str"] = readable(entry.annotation_str)
    for member in getattr(entry, "members", {}).values():
        prepared(member, formulas, seen)


def write_reference(site: pathlib.Path) -> dict[str, pdoc.doc.Module]:
    """The API reference: the public names, the public modules and the contracts."""
    for name in truncgauss.__all__:
        getattr(truncgauss, name)  # they are imported when first asked for
    names = ["truncgauss", *truncgauss._MODULES.values(), *CONTRACTS]
    modules = {name: pdoc.doc.Module.from_name(name) for name in dict.fromkeys(names)}
    formulas, seen = Formulas(), set()
    for module in modules.values():
        prepared(module, formulas, seen)
    for module in modules.values():
        page = formulas.shown(pdoc.render.html_module(module, modules))
        write(site / f"{module.fullname.replace('.', '/')}.html", page)
    return modules


def linked_names(body: str, source: str, site: pathlib.Path) -> str:
    """A body whose `tg.name` lead to their entries of the reference."""

    def link(dotted: str) -> str:
        module, *names = "truncgauss", *dotted.strip(".").split(".")
        if alias := truncgauss._MODULES.get(names[0]):
            module, names = alias, names[1:]
        page = f"{module.replace('.', '/')}.html"
        while names and ".".join(names) not in anchors(site / page) and len(names) > 1:
            names.pop()  # an attribute that its class describes
        if names and ".".join(names) not in anchors(site / page):
            raise BuildError(f"{source} names tg{dotted}, which the reference does not have")
        return f"{page}#{'.'.join(names)}" if names else page

    def led(m: re.Match[str]) -> str:
        if m[1]:
            return m[1]
        dotted = m[3] or re.sub(r"<[^>]*>", "", m[5])
        return f'<a href="{link(dotted)}">' + (f"<code>{m[2]}</code>" if m[2] else m[4]) + "</a>"

    return NAMED.sub(led, body)


def write_search(
    site: pathlib.Path, modules: dict[str, pdoc.doc.Module], bodies: dict[str, str]
) -> None:
    """One index of the public entries of the reference and of the sections of the pages."""
    sections = []
    titles = {page: title for title, page in CONTENTS}
    for page, body in bodies.items():
        for part in SECTION.split(body):
            if heading := re.match(r'<h[12] id="([^"]+)">(.*?)</h[12]>', part, re.DOTALL):
                name = html.unescape(re.sub(r"<[^>]*>", "", heading[2]))
                text = re.sub(r"<(?!/?(?:p|pre|span|table|tr|td|th|li|ul)\b)[^>]*>", " ", part)
                sections.append({
                    "fullname": f"{titles[page]}: {name}", "modulename": page.removesuffix(".html"),
                    "qualname": heading[1], "kind": "section", "doc": text,
                })  # fmt: skip
    entries = pdoc.render.make_index

    def both(*arguments: object) -> list[dict[str, str]]:
        # What is no public module would come before the pages; its reference lists it. A name that
        # `truncgauss` has too is found there.
        public = {"truncgauss", *truncgauss._MODULES.values()}
        listed = [
            x
            for x in entries(*arguments)
            if x["modulename"] == "truncgauss"
            or (
                x["modulename"] in public
                and x.get("qualname", "").partition(".")[0] not in truncgauss.__all__
            )
        ]
        return [*sections, *listed]

    pdoc.render.make_index = both
    try:
        script = TOKEN.sub("", pdoc.render.search_index(modules))
    finally:
        pdoc.render.make_index = entries
    if script.count(ASKED) != 1:
        raise BuildError("pdoc's search no longer takes its words as it did: see ASKED")
    write(site / "search.js", script.replace(ASKED, WORDS_ASKED))


# --- Pages ----------------------------------------------------------------------------------------


def text_of(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_page(site: pathlib.Path, name: str, title: str, body: str) -> None:
    template = pdoc.render.env.from_string(PAGE)
    up = "../" * name.count("/")
    # The depth of the page, from which its search finds the index.
    depth = {"modulename": "." * name.count("/")}
    page = template.render(title=title, body=body, up=up, name=name, module=depth)
    write(site / name, page)


def place_of(target: str) -> str:
    """The page that shows a file or folder of the repository."""
    if target in WRITTEN:
        return WRITTEN[target]
    if target.startswith("figures/") and not target.endswith(".json"):
        return target
    if target.startswith("docs/gallery/"):
        return target.removeprefix("docs/")
    if target in ("figures", "experiments", "configs"):
        return "gallery.html"
    return f"source/{target}/index.html" if (ROOT / target).is_dir() else f"source/{target}.html"


def relinked(body: str, folder: str, sources: set[str]) -> str:
    """A body written in a folder of the repository, its links to files led to their pages."""

    def led(match: re.Match[str]) -> str:
        attribute, link = match.groups()
        path, hash_mark, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(folder, path))
        if not path or ":" in path or not (ROOT / target).exists():
            return match[0]
        sources.add(target)
        return f'{attribute}="{place_of(target)}{hash_mark}{anchor}"'

    return re.sub(r'(href|src)="([^"]+)"', led, body)


def write_source(site: pathlib.Path, target: str) -> None:
    """A file of the repository in colour, or the list of a folder's files and these files."""
    path = ROOT / target
    if path.is_dir():
        files = sorted(p.relative_to(ROOT).as_posix() for p in path.glob("*.py"))
        items = "".join(f'<li><a href="{posixpath.basename(f)}.html">{f}</a></li>' for f in files)
        write_page(site, place_of(target), target, f"<h1>{target}</h1><ul>{items}</ul>")
        for file in files:
            write_source(site, file)
        return
    text = text_of(path)
    try:
        lexer = pygments.lexers.get_lexer_for_filename(path.name, text)
    except pygments.util.ClassNotFound:
        lexer = pygments.lexers.TextLexer()
    formatter = pygments.formatters.HtmlFormatter(cssclass="pdoc-code codehilite")
    code = pygments.highlight(text, lexer, formatter)
    write_page(site, place_of(target), target, f"<h1>{target}</h1>{code}")


def draw_gallery() -> None:
    """The figures of docs/gallery.md, each by the block of code above it."""
    page = text_of(ROOT / "docs" / "gallery.md")
    names: dict[str, object] = {}
    for block in re.split(r"(?<=\n```)\n(?=\n## )|(?<=\.png\))\n", page):
        code = "".join(re.findall(r"^```python\n(.*?)^```$", block, re.MULTILINE | re.DOTALL))
        exec(compile(code, "docs/gallery.md", "exec"), names)
        for stem in re.findall(r"\]\((gallery/\w+)\.png\)", block):
            names["picture"].savefig(ROOT / f"docs/{stem}.png", dpi=130)


def figures_of_experiments() -> str:
    """Every figure, with the first paragraph of its experiment's docstring and links to both."""
    parts = []
    for name in sorted(path.stem for path in (ROOT / "figures").glob("*.png")):
        code = text_of(ROOT / "experiments" / name / "__init__.py")
        caption = re.match(r'r?"""(.*?)(?:\n\n|""")', code, re.DOTALL)
        if caption is None:
            raise BuildError(f"experiments/{name} has no docstring to caption its figure")
        figure = f"../figures/{name}"
        moved = (
            f"![{name}, moving]({figure}.gif)\n\n"
            if (ROOT / f"figures/{name}.gif").is_file()
            else ""
        )
        parts.append(
            f"## {name}\n\n{caption[1]}\n\n![{name}]({figure}.png)\n\n{moved}"
            f"[experiments/{name}](../experiments/{name}) · "
            f"[configs/{name}.yaml](../configs/{name}.yaml) · [as SVG]({figure}.svg)\n"
        )
    return "\n".join(parts)


def build(site: pathlib.Path) -> None:
    """Write the whole site, in place of an older one."""
    if unlisted := {path.stem for path in (ROOT / "docs").glob("*.md")} - set(GUIDE):
        raise BuildError(f"docs/ has pages that GUIDE does not list: {', '.join(unlisted)}")
    shutil.rmtree(site, ignore_errors=True)
    pdoc.render.configure(
        docformat="google", include_undocumented=False,
        footer_text=f"truncgauss {truncgauss.__version__}, built with JAX {jax.__version__}",
        template_directory=ROOT / ".ci" / "templates",
    )  # fmt: skip
    pdoc.render.env.filters["format_signature"] = formatted
    pdoc.render.env.globals["contents"] = CONTENTS
    pdoc.render.env.globals["version"] = truncgauss.__version__
    dark = pygments.formatters.HtmlFormatter(style="github-dark").get_style_defs(".pdoc-code")
    pdoc.render.env.globals["dark_code"] = dark
    modules = write_reference(site)
    shutil.copytree(ROOT / "docs" / "gallery", site / "gallery")
    (site / "figures").mkdir()
    for suffix in ("png", "svg", "gif"):
        for path in (ROOT / "figures").glob(f"*.{suffix}"):
            shutil.copy(path, site / "figures")
    sources: set[str] = set()
    formulas, bodies = Formulas(), {}
    for file, name in WRITTEN.items():
        text = text_of(ROOT / file)
        text += figures_of_experiments() if name == "gallery.html" else ""
        body = pdoc.render_helpers.to_html(formulas.hidden_in_page(text))
        body = relinked(body, posixpath.dirname(file), sources)
        if name != "changes.html":  # which tells of names that are gone
            body = linked_names(body, file, site)
        title = next(title for title, page in CONTENTS if page == name)
        bodies[name] = formulas.shown(body)
        write_page(site, name, title, bodies[name])
    write_search(site, modules, bodies)
    for target in sorted(t for t in sources if place_of(t).startswith("source/")):
        write_source(site, target)


# --- Links ----------------------------------------------------------------------------------------


@functools.cache
def anchors(path: pathlib.Path) -> frozenset[str]:
    return frozenset(html.unescape(name) for name in re.findall(r'\bid="([^"]+)"', text_of(path)))


def broken_links(site: pathlib.Path) -> list[str]:
    """Links to pages or anchors that do not exist, and what a page would load from elsewhere."""
    broken = []
    for path in sorted(site.rglob("*.html")):
        page = re.sub(r"(<script[^>]*>).*?</script>", r"\1", text_of(path), flags=re.DOTALL)
        for tag, attribute, raw in re.findall(r'<(\w+)\b[^>]*?\s(href|src)="([^"]*)"', page):
            link = urllib.parse.urlsplit(html.unescape(raw))
            if link.scheme or link.netloc:
                loaded = attribute == "src" or tag == "link"
                if loaded and link.scheme != "data":
                    broken.append(f"{path.relative_to(site)}: loads {raw}")
                continue
            target = path.parent / urllib.parse.unquote(link.path) if link.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: no such page: {raw}")
            elif link.fragment and urllib.parse.unquote(link.fragment) not in anchors(target):
                broken.append(f"{path.relative_to(site)}: no such place: {raw}")
    return broken


# --- Run times ------------------------------------------------------------------------------------


def run_times() -> list[str]:
    """A line for each page: the seconds that its code took, as the tests run it."""
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "python_blocks",
    )
    report = ("--durations=0", "--durations-min=0", "tests/test_pages.py")
    done = subprocess.run(
        [*command, *report], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"the code of the pages:\n{done.stdout}{done.stderr}")
    times = re.findall(r"([\d.]+)s call .*\[(\S+\.md)\]", done.stdout)
    return [f"{float(seconds):7.1f} s  {page}" for seconds, page in times]


def main(site: pathlib.Path, run: bool) -> int:
    try:
        build(site)
        times = run_times() if run else []
    except BuildError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    broken = broken_links(site)
    for line in broken:
        print(f"docs: {line}", file=sys.stderr)
    if not broken:
        print(*times, f"{site}/index.html", sep="\n")
    return int(bool(broken))


if __name__ == "__main__":
    if "--draw" in sys.argv:
        raise SystemExit(draw_gallery())
    raise SystemExit(main(pathlib.Path(sys.argv[1]), "--no-run" not in sys.argv))
