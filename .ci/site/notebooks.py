"""Pages as Jupyter notebooks: prose, and Python with what it prints, as the tests of pages hold it.

`make docs` writes those of NOTEBOOKS to site/notebooks/ and links to them; by itself
`python .ci/site/notebooks.py FOLDER` writes them to a folder.
"""

import json
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The first story, a survey, detection limits, a field, NumPyro, gradients.
NOTEBOOKS = (
    "soft-limits", "astronomy", "detection-limits", "geostatistics", "numpyro", "gradients"
)  # fmt: skip
PAIR = re.compile(r"^```python\n(.*?)^```\n+```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
NEEDS = "*Needs truncgauss and what the cells import; they run from the first to the last.*\n"


def notebook(page: str) -> dict[str, Any]:
    """A page in Markdown as the content of a notebook, by version 4.4 of its format."""
    first, *rest = PAIR.split(page)
    cells = [prose(f"{first.strip()}\n\n{NEEDS}")]
    for code, printed, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        shown = {"output_type": "stream", "name": "stdout", "text": lines(printed)}
        cells.append(
            {
                "cell_type": "code", "execution_count": None, "metadata": {},
                "outputs": [shown] if printed else [], "source": lines(code.rstrip("\n")),
            }
        )  # fmt: skip
        if text.strip():
            cells.append(prose(text))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}


def prose(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": lines(text.strip())}


def lines(text: str) -> list[str]:
    """A text as notebooks store it: lines with their ends."""
    return text.splitlines(keepends=True)


def written(page: str) -> str:
    """The notebook of a page as the text of its file."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("notebooks.py: needs the folder to write to, such as site/notebooks")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in NOTEBOOKS:
        text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        (folder / f"{name}.ipynb").write_text(written(text), "utf-8")
