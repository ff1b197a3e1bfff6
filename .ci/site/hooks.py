"""Hooks of mkdocs: files from outside docs/, links between them, names and formulas.

Formulas become MathML, which browsers draw without a script.
"""

import ast
import html
import importlib
import inspect
import pathlib
import posixpath
import re
import runpy

import griffe
import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    ".github/CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<!\[)`tg((?:\.[A-Za-z]\w*)+)([^`]*)`(?!\])")
ROLE = re.compile(r":math:`([^`]+)`")
DIRECTIVE = re.compile(
    r"^( *)\.\. math::((?:.*\n?)(?:\1 +\S.*\n?|[ \t]*\n(?=\1 +\S))*)", re.MULTILINE
)
WRITTEN = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL
)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".cff": "yaml", ".md": "markdown"}
NOTEBOOK = runpy.run_path(str(ROOT / ".ci" / "site" / "notebooks.py"))
sources: dict[str, str] = {}  # pages of sources by the files or folders that they show


class Docstrings(griffe.Extension):
    """Docstrings in the form that mkdocstrings knows, and signatures of frozen classes."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Formulas between dollars, and examples as examples."""
        if obj.docstring:
            text = DIRECTIVE.sub(
                lambda found: f"{found[1]}$$\n{found[1]}{found[2].strip()}\n{found[1]}$$\n",
                obj.docstring.value,
            )
            text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
            obj.docstring.value = ROLE.sub(r"$\1$", text)

    def on_module_members(self, *, node: ast.AST, mod: griffe.Module, **_: object) -> None:
        """Names that a package imports from its modules as themselves are its own."""
        imports = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.ImportFrom)]
        names = [name.name for part in imports for name in part.names if name.asname == name.name]
        mod.exports = [*(mod.exports or ()), *names] or None

    def on_class_members(self, *, cls: griffe.Class, **_: object) -> None:
        """The signature that a decorator makes of the fields."""
        if not cls.decorators or "__init__" in cls.members or cls.name.startswith("_"):
            return
        kind = getattr(importlib.import_module(cls.module.path), cls.name)
        parameters = [
            griffe.Parameter(
                name,
                kind=getattr(griffe.ParameterKind, parameter.kind.name.lower()),
                default=None if parameter.default is parameter.empty else repr(parameter.default),
            )
            for name, parameter in inspect.signature(kind).parameters.items()
        ]
        own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        cls.set_member(
            "__init__", griffe.Function("__init__", parameters=griffe.Parameters(own, *parameters))
        )


def on_files(files: Files, config: object) -> Files:
    """Add the pages from outside docs/, the figures, and pages of sources."""
    for path, page in PAGES.items():
        text = (ROOT / path).read_text()
        files.append(File.generated(config, page, content=relinked(text, path, page)))
    for path in [*(ROOT / "figures").iterdir(), *(ROOT / ".ci/site").glob("site.*")]:
        if path.suffix in {".png", ".svg", ".gif", ".css", ".js"}:
            uri = path.name if path.stem == "site" else f"figures/{path.name}"
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for file in files.documentation_pages():
        if file.generated_by is None and (text := file.content_string):
            relinked(text, f"docs/{file.src_uri}", file.src_uri)
    relinked(figures_of_experiments(), "docs/gallery.md", "gallery.md")
    for name in NOTEBOOK["NOTEBOOKS"]:
        text = (ROOT / "docs" / f"{name}.md").read_text()
        text = re.sub(r"(\]\([^)\s:#]+)\.md(?=[#)])", r"\1.html", at_home(text, name))
        content = NOTEBOOK["written"](text)
        files.append(File.generated(config, f"notebooks/{name}.ipynb", content=content))
    for target, page in sources.items():
        files.append(File.generated(config, page, content=source_of(target)))
    return files


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Pages whose links and names lead to where they are on the site."""
    uri = page.file.src_uri
    if uri in {"changes.md", "contributing.md"} or uri.startswith("paper/"):
        page.meta.pop("tags", None)  # which the search would put above all titles
        page.meta["search"] = {"boost": 0.2}
    if uri == "gallery.md":
        markdown += figures_of_experiments()
    if page.file.generated_by is None:
        markdown = relinked(markdown, f"docs/{uri}", uri)
    if (name := uri.removesuffix(".md")) in NOTEBOOK["NOTEBOOKS"]:
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\n[This page as a notebook](notebooks/{name}.ipynb)\n{rest}"
    if uri in {"changes.md", "contributing.md"} or uri.startswith("source/"):
        return markdown  # the first two tell of names that are gone, or private
    parts = CODE.split(markdown)
    parts[::2] = [NAMED.sub(r"[`tg\1\2`][truncgauss\1]", part) for part in parts[::2]]
    return "".join(parts)


def at_home(text: str, name: str) -> str:
    """A page of docs/ whose links lead from the folder of notebooks on the site."""
    return relinked(text, f"docs/{name}.md", f"notebooks/{name}.md")


def on_page_content(content: str, **_: object) -> str:
    """The page with its formulas as MathML."""

    def drawn(found: re.Match[str]) -> str:
        display = "inline" if found[1] == "span" else "block"
        return latex2mathml.converter.convert(html.unescape(found[2]), display=display)

    return WRITTEN.sub(drawn, content)


def relinked(text: str, path: str, page: str) -> str:
    """A page whose relative links lead from its place on the site, not from that of its file."""

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        if not (ROOT / target).exists():
            raise PluginError(f"{path}: there is no {target}")
        if target.startswith(("docs/", "figures/")):
            new = target.removeprefix("docs/")
        elif target in PAGES:
            new = PAGES[target]
        else:
            new = sources.setdefault(target, f"source/{target.removeprefix('.')}.md")
        return found[1] + posixpath.relpath(new, posixpath.dirname(page)) + (found[3] or "")

    return LINK.sub(moved, text)


def source_of(target: str) -> str:
    """A page that shows a file, an experiment, or what the files of another folder are for."""
    path = ROOT / target
    files = [path] if path.is_file() else sorted(path.rglob("*.*"))
    files = [file for file in files if file.suffix in LANGUAGES]
    parts = [f"---\nsearch: {{ exclude: true }}\n---\n# {target}\n"]
    for file in files:
        name, text = file.relative_to(ROOT), file.read_text()
        if path.is_file() or path.parent.name == "experiments":
            parts.append(f"## {name}\n\n````{LANGUAGES[file.suffix]}\n{text}````\n")
        elif first := re.match(r'r?"""(.+?)(?:\n\n|""")', text, re.DOTALL):
            parts.append(f"- `{name}`: {' '.join(first[1].split())}")
    return "\n".join(parts)


def figures_of_experiments() -> str:
    """Every figure, with what its experiment is, its caption, and links to both."""
    parts = []
    for path in sorted((ROOT / "figures").glob("*.png")):
        name = path.stem
        code = (ROOT / "experiments" / name / "run.py").read_text()
        about = re.match(r'r?"""(.*?)(?:\n\n|""")', code, re.DOTALL)
        caption = path.with_suffix(".md")
        if about is None or not caption.is_file():
            raise PluginError(f"{name}: there is no docstring of it, or no figures/{name}.md")
        moving = f"![{name}, moving](../figures/{name}.gif)\n\n" * path.with_suffix(".gif").exists()
        parts.append(
            f"\n## {name}\n\n{about[1]}\n\n![{name}](../figures/{name}.png)\n\n"
            f"{caption.read_text()}\n{moving}"
            f"[experiments/{name}](../experiments/{name}) · "
            f"[configs/{name}.yaml](../configs/{name}.yaml) · [as SVG](../figures/{name}.svg)\n"
        )
    return "\n".join(parts)
