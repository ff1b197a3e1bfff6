"""Draws the figures of docs/gallery.md, each by the code above it: `python .ci/gallery.py`."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    names: dict[str, object] = {}
    for block in re.split(r"(?<=\n```)\n(?=\n## )|(?<=\.png\))\n", page):
        code = "".join(re.findall(r"^```python\n(.*?)^```$", block, re.MULTILINE | re.DOTALL))
        exec(compile(code, "docs/gallery.md", "exec"), names)
        for stem in re.findall(r"\]\((gallery/\w+)\.png\)", block):
            names["picture"].savefig(ROOT / f"docs/{stem}.png", dpi=130)


if __name__ == "__main__":
    main()
