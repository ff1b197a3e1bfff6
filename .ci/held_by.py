"""What each public name, method and error sentence is held by: `python .ci/held_by.py [ROOT]`.

One line each, a kind, a name and the files that mention it: files of tests, pages whose code is run
and docstrings with examples. A sentence is that of a `raise`, mentioned where a text of a test is a
part of it, or it of a text. Lines of two states are compared with `diff`.
"""

import ast
import collections
import importlib
import json
import pathlib
import re
import sys

SHORTEST = 10  # characters of a text that is sought in sentences


def public_names() -> list[str]:
    """Names of the package and of its public modules."""
    import truncgauss

    names = list(truncgauss.__all__)
    for module in truncgauss._MODULES:
        home = importlib.import_module(truncgauss._MODULES[module])
        names += [f"{module}.{name}" for name in getattr(home, "__all__", ())]
    return sorted(set(names))


def sentences(path: pathlib.Path) -> list[list[str]]:
    """The literal parts of each message that a file raises."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            first = node.exc.args[0]
            parts = first.values if isinstance(first, ast.JoinedStr) else [first]
            texts = [x.value for x in parts if isinstance(x, ast.Constant)]
            found.append([text for text in texts if isinstance(text, str) and text.strip()])
    return [parts for parts in found if max(map(len, parts), default=0) >= SHORTEST]


def texts_of(path: pathlib.Path) -> list[str]:
    """The texts in a file of tests, each regular expression cut where it is not literal."""
    if path.suffix != ".py":
        return [json.loads(text) for text in re.findall(r'"(?:[^"\\]|\\.)*"', path.read_text())]
    nodes = ast.walk(ast.parse(path.read_text()))
    values = [x.value for x in nodes if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    pieces = [re.split(r"\.[*+]\??|\|", value) for value in values]
    return values + [re.sub(r"\\(.)", r"\1", piece) for group in pieces for piece in group]


def main(root: pathlib.Path) -> None:
    sys.path.insert(0, str(root))
    tests = sorted((root / "tests").glob("*.py"))
    sources = sorted((root / "truncgauss").rglob("*.py"))
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    code = {path: path.read_text() for path in tests}
    code |= {x: "\n".join(re.findall(r"```python\n(.*?)```", x.read_text(), re.S)) for x in pages}
    code |= {x: "\n".join(re.findall(r">>> .*|\.\.\. .*", x.read_text())) for x in sources}
    lines = []
    for name in public_names():
        word = re.compile(rf"\b{re.escape(name.split('.')[-1])}\b")
        lines.append(("name", name, [path for path, text in code.items() if word.search(text)]))
    routes = re.findall(r"`(?:tg\.)?([\w.]+)\(", (root / "docs/methods.md").read_text())
    for name in sorted(set(routes)):
        word = re.compile(rf"\b{re.escape(name)}\(")
        lines.append(("method", name, [path for path, text in code.items() if word.search(text)]))
    texts = {path: texts_of(path) for path in [*tests, root / "tests/numbers.json"]}
    holders = collections.defaultdict(list)
    wanted = {" ... ".join(x): x for path in sources for x in sentences(path)}
    for path, words in texts.items():
        every, long = "\n".join(words), {word for word in words if len(word) >= SHORTEST}
        for sentence, parts in wanted.items():
            whole = max(parts, key=len).strip() in every
            if whole or any(word in part for part in parts for word in long):
                holders[sentence].append(path)
    lines += [("sentence", repr(sentence), holders[sentence]) for sentence in sorted(wanted)]
    for kind, name, paths in lines:
        print(kind, name, *sorted(str(path.relative_to(root)) for path in paths), sep="\t")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if sys.argv[1:] else ".").resolve())
