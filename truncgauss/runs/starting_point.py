"""The files to begin with: the config of a built-in experiment, or an experiment of one's own."""

import os
from pathlib import Path

from truncgauss.execution import files
from truncgauss.runs import config as settings


def write(name: str, folder: Path = Path()) -> list[Path]:
    """Write NAME.yaml, with the data or the NAME.py that it names, and return their paths.

    Raises:
        ValueError: the name cannot be that of a Python file, or one of the files is there already.
    """
    if not name.isidentifier():
        raise ValueError(f"a name must be letters, digits and underscores (got {name!r})")
    contents = _built_in(name) if name in settings.names() else _template(name)
    texts = {folder / file: content for file, content in contents.items()}
    for path in texts:
        if path.exists():
            raise ValueError(f"{path} is there already: move it, or work in another folder")
    for path, text in texts.items():
        files.write(path, text)
    return list(texts)


def _built_in(name: str) -> dict[str, str | bytes]:
    """The config of a built-in experiment and its data, by the names of their files."""
    configs = settings.folder("configs")
    shipped = configs / f"{name}.yaml"
    text, data = settings.with_schema(shipped.read_text("utf-8"), name), dict[str, str | bytes]()
    for path in settings.files(settings.load(shipped)):
        text = text.replace(Path(os.path.relpath(path, configs)).as_posix(), path.name)
        data[path.name] = path.read_bytes()
    return {shipped.name: text, **data}


def _template(name: str) -> dict[str, str | bytes]:
    """The config and the code of an experiment of the user's own, by the names of their files."""
    template = settings.folder("configs") / "template"
    texts = {kind: (template / f"experiment.{kind}").read_text("utf-8") for kind in ("yaml", "py")}
    return {
        f"{name}.{kind}": text.replace("experiment.py", f"{name}.py")
        for kind, text in texts.items()
    }
