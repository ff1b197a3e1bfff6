"""The command line: `truncgauss run | check | schema | new | list | plot | gather`.

Exit codes: 0 fine, 1 the run failed, 2 usage or settings, 130 and 143 interrupted, 141 whoever read
the output has closed it.

JAX is imported when an experiment starts, not before: settings decide precision and devices.
"""

import dataclasses
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

import tyro

from truncgauss import __version__
from truncgauss.execution import writing
from truncgauss.execution.interrupts import interrupts
from truncgauss.runs import config as settings
from truncgauss.runs import starting_point, summary, work
from truncgauss.runs.config.yaml import ConfigError
from truncgauss.runs.folder import publish, read, unfinished, writable
from truncgauss.words import terminal
from truncgauss.words.names import closest

FINE, FAILED, USAGE, INTERRUPTED, CLOSED, TERMINATED = 0, 1, 2, 130, 141, 143
ERROR = "truncgauss: error"
QUIET = (tyro.conf.DisallowNone,)  # None is what an option is without a word for it
MEANT = {
    "resume": "to continue a run: truncgauss run --resume FOLDER",
    "sweep": "a config with a section `sweep:` is a sweep: truncgauss run CONFIG",
    "help": "truncgauss --help",
    "version": "truncgauss --version",
    "fit": "truncgauss new TABLE writes the config of a fit, and truncgauss run CONFIG fits it",
}


# ---------------------------------------------------------------- what may be typed

T = TypeVar("T")
Silent = Annotated[T, tyro.conf.arg(help_behavior_hint="")]
"""An option whose help names no default, since that is nothing."""
Flag = Silent[tyro.conf.FlagCreatePairsOff[bool]]


@dataclasses.dataclass(frozen=True)
class Run:
    """Run an experiment; further options are its settings: --section.field value ...

    `truncgauss run config.yaml --help` lists them. Example: truncgauss run tobin --level 0.9
    """

    config: tyro.conf.Positional[Silent[Path | None]] = None
    """A YAML file, or the name of an experiment, for the settings that it comes with."""
    runs: Path = Path("runs")
    """The folder that the run folder goes into."""
    figures: Silent[Path | None] = None
    """Also put the figure, with its values, here under the experiment's name."""
    resume: Silent[Path | None] = None
    """Continue the interrupted run in this folder instead."""
    distributed: Flag = False
    """Share the run with other processes, as started by Slurm, Open MPI or Kubernetes, or given:"""
    coordinator: Silent[str | None] = None
    """HOST:PORT of the first process,"""
    num_processes: Silent[int | None] = None
    """how many there are,"""
    process_index: Silent[int | None] = None
    """and which of them this is, from 0."""
    save_every: float = 10.0
    """Seconds between two checkpoints."""
    index: Silent[int | None] = None
    """Make only this run of a sweep, 0 for the first; `truncgauss gather` makes the table."""
    traceback: Flag = False
    """Show where in the code an error came from."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Check files without running them; a Python file that one names is imported, though.

    Example: truncgauss check mine.yaml
    """

    configs: tyro.conf.Positional[Silent[tuple[Path, ...]]] = ()
    """YAML files, or names of experiments."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """Print the JSON schema of the settings.

    Example: truncgauss schema tobin
    """

    experiment: tyro.conf.Positional[Silent[str | None]] = None
    """The name of an experiment, or a Python file; all built-in experiments if left out."""


@dataclasses.dataclass(frozen=True)
class New:
    """Write a config to begin with: of a fit of a table, or of an experiment.

    `new data.csv` writes data.yaml, which fits a column of that table: --outcome and the options
    after it say which and what is known of it. `new NAME` copies the config
    of a built-in experiment with its data; another NAME becomes an experiment of your own, NAME.py.

    Example: truncgauss new lab.csv --outcome zinc lead --log
    """

    name: tyro.conf.Positional[str]
    """A CSV, NPZ or Parquet table, the name of a built-in experiment, or what to call your own."""
    outcome: Silent[tuple[str, ...]] = ()
    """Of a table: the columns to fit. Cells such as <0.5, >100 and nd are censored values."""
    covariates: Silent[tuple[str, ...]] = ()
    """The columns that they depend on."""
    censored_low: Silent[tuple[str, ...]] = ()
    """At or below this value an outcome is only known to be so; a number or a column. Of several
    outcomes: lead=0.5 zinc=limit. Where cells of lead say nd, lead=0.5 is for these alone."""
    censored_high: Silent[tuple[str, ...]] = ()
    """At or above this value, likewise."""
    truncated_low: Silent[tuple[str, ...]] = ()
    """Below this value nothing could be observed at all; a number or a column."""
    truncated_high: Silent[tuple[str, ...]] = ()
    """Above this value, likewise."""
    censoring: Silent[Literal["text"] | None] = None
    """Also read a laboratory's letters: 0.5 U, 0.5 UJ and ND 0.5 are below 0.5, 0.5 J is 0.5."""
    missing: Silent[tuple[str, ...]] = ()
    """Texts that stand for a value that is missing by chance, beside NA and the like."""
    units_row: Flag = False
    """The first row below the header holds units, whatever is written there."""
    log: Flag = False
    """Fit the logarithm, as of concentrations; bounds are those of the outcome itself."""
    overwrite: Flag = False
    """Replace files of these names that are there already."""


@dataclasses.dataclass(frozen=True)
class List:
    """Show the runs in a folder, a line each.

    Example: truncgauss list
    """

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder of the run folders."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw the figure of a complete run again, from its stored results.

    Example: truncgauss plot runs/tobin-20261124T190000Z
    """

    run: tyro.conf.Positional[Path]
    """The folder of the run."""
    figures: Silent[Path | None] = None
    """Also put the figure, with its values, here under the experiment's name."""


@dataclasses.dataclass(frozen=True)
class Gather:
    """Write the table of a sweep: summary.csv and summary.json.

    Example: truncgauss gather runs/tobin-sweep-0123abcd --columns 'by_name/*'
    """

    folder: tyro.conf.Positional[Path]
    """The folder of the sweep."""
    columns: Silent[tuple[str, ...]] = ()
    """Names of the results to print, such as loss 'fit/*'; by default a few that differ."""


Command = Run | Check | Schema | New | List | Plot | Gather


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code.

    Args:
        argv: the words after the program's name; those of this process by default.

    Example:
        >>> from truncgauss import cli
        >>> cli.main(["check", "nowhere.yaml"])
        2
    """
    try:
        return _answered(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        return CLOSED


def _answered(words: list[str]) -> int:
    """The exit code of a command line, after whatever it prints."""
    try:
        with interrupts():
            try:
                return _act(words)
            finally:
                _tell()  # what the parser printed
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        # Data or settings that the code below refused, in a sentence of its own.
        if "--traceback" in words:
            raise
        located = isinstance(error, ConfigError)
        machine = isinstance(error, OSError) and not writing.is_of_the_path(error)
        said = writing.said(error) if isinstance(error, OSError) else str(error)
        print(error if located else f"{ERROR}: {' '.join(said.split())}", file=sys.stderr)
        return FAILED if machine else USAGE
    except work.MistakeInCode as error:
        if "--traceback" in words or _joined():
            raise
        print(f"{ERROR}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt as stop:
        print("truncgauss: interrupted" + "".join(f" by {x}" for x in stop.args), file=sys.stderr)
        return TERMINATED if "SIGTERM" in stop.args else INTERRUPTED


def console() -> NoReturn:
    """The command `truncgauss`: `main`, and the end of the process.

    JAX's clean-up at exit frees what a computation that cannot be stopped still uses: after an
    interruption that ended in a segmentation fault, and its exit code. So it is left out then.
    """
    try:
        code = main()
    except Exception:
        if not (joined := _joined()):
            raise
        traceback.print_exc()
        print(f"{ERROR}: this process failed, or another one that it waited for", file=sys.stderr)
        code = FAILED
        joined.leave(code)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # it would fail again at exit, and change the exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code not in (FINE, FAILED) and (joined := _joined()):
        joined.leave(code)
    if code in (INTERRUPTED, TERMINATED):
        os._exit(code)
    sys.exit(code)


def _tell(*lines: object) -> None:
    """Print lines at once, wrapped on a terminal; a failure is one of this command.

    Raises:
        OSError: that is not possible, as on a full disk; BrokenPipeError where nobody reads them.
    """
    try:
        shown = (terminal.wrapped(str(line)) for line in lines)
        print(*shown, sep="\n", end="\n" if lines else "", flush=True)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, "standard output") from error


def _joined() -> Any:
    """The module of the processes if this is one of several, which it need not be imported to know;
    else None."""
    module = sys.modules.get("truncgauss.execution.distributed")
    return module if module is not None and module.joined() else None


def _act(words: list[str]) -> int:
    if words == ["--version"]:
        _tell(f"truncgauss {__version__}")
        return FINE
    if words[:1] == ["run"] and words[-1] in ("-h", "--help") and len(words) > 2:
        config, name = settings.load(_file(Path(words[1]))), f"truncgauss run {words[1]}"
        with terminal.paragraphs():
            kind, default = described(config)
            settled = (*QUIET, tyro.conf.AvoidSubcommands)  # nothing is left to choose
            tyro.cli(kind, default=default, args=["--help"], prog=name, config=settled)
    asked, changes = _asked(words)
    match asked:
        case Check():
            return _check(asked.configs)
        case Schema():
            _tell(json.dumps(settings.schema(asked.experiment), indent=2))
        case New():
            options = dataclasses.asdict(asked)
            name, overwrite = options.pop("name"), options.pop("overwrite")
            paths = starting_point.write(name, options, overwrite)
            _tell(*paths)
            if starting_point.is_table(name) and (code := _check(paths)):
                return code  # something that is known of the table is wrong
            _tell(f"To run it: truncgauss run {shlex.quote(str(paths[0]))}")
        case List():
            _tell(*summary.listed(asked.runs))
        case Plot():
            run = read(asked.run)
            _tell(*work.redraw(run))
            if asked.figures:
                publish(asked.figures, run)
        case Gather():
            _tell(*summary.gather(asked.folder, asked.columns))
        case Run():
            return _run(asked, changes, words)
    return FINE


def described(section: settings.Model) -> tuple[type[Any], Any]:
    """The settings of a section as a dataclass and its instance, for their help: a default that is
    nothing is not named, and a section of several kinds is shown as the one that was chosen."""
    fields, values = [], {}
    for name, field in type(section).model_fields.items():
        kind, value = field.annotation, getattr(section, name)
        if isinstance(value, settings.Model):
            kind, value = described(value)
        silent = value is None or value in ((), {}, "")
        hint = tyro.conf.arg(help=field.description, help_behavior_hint="" if silent else None)
        fields.append((name, Annotated[kind, hint]))
        values[name] = value
    shown = dataclasses.make_dataclass(type(section).__name__, fields)
    shown.__doc__ = type(section).__doc__
    return shown, shown(**values)


def _asked(words: list[str]) -> tuple[Command, list[str]]:
    """The command that was typed, and the words that are settings of the config of `run`: the
    options that the command does not have, each with what follows it.

    Raises:
        ValueError: a word that means nothing; it says which one may have been meant.
    """
    kinds = {kind.__name__.lower(): kind for kind in get_args(Command)}
    own, changes, unknown = list[str](), list[str](), False
    command = None if not words or words[0].startswith("-") else words[0]
    if command is not None and command not in kinds:
        near = MEANT.get(command) or settings.suggestion(command, list(kinds))
        if command.endswith((".yaml", ".yml")):
            near = f"to run that file: truncgauss run {shlex.join(words)}"
        raise ValueError(f"{command!r}: unknown command; {near}")
    for word in words:
        if command and re.match(r"-[^\d.]", word):
            known = {"h", "help", *(field.name for field in dataclasses.fields(kinds[command]))}
            unknown = word.split("=")[0].lstrip("-").replace("-", "_") not in known
        (changes if unknown else own).append(word)
    options = [word.split("=")[0] for word in own if word.startswith("--")]
    if twice := [option for option in options if options.count(option) > 1]:
        raise ValueError(f"{command}: {twice[0]} is there twice; write all that it has after one")
    if changes and command != "run":
        raise _no_option(kinds[command], changes[0])
    with terminal.paragraphs():
        asked, stray = tyro.cli(
            Command, args=own, prog="truncgauss", return_unknown_args=True, config=QUIET
        )
    if stray:
        word = stray[0]
        near = f"did you mean --{word}?" if "=" in word else f"truncgauss {words[0]} --help"
        raise ValueError(
            f"{words[0]}: {word!r} belongs to no option (got {' '.join(words)}); {near}"
        )
    if changes and getattr(asked, "resume", None):
        raise ValueError(
            "run --resume continues with the settings of that run; for others start a new one (got "
            f"{changes[0]})"
        )
    if changes and getattr(asked, "config", None) is None:
        raise _no_option(type(asked), changes[0])
    return asked, changes


def _no_option(kind: type[Any], word: str) -> ValueError:
    """The error of a word that is no option of a command, with those that it has."""
    name, option = kind.__name__.lower(), word.split("=")[0]
    _, *named = (field.name for field in dataclasses.fields(kind))  # the first goes by its position
    options = [key.replace("_", "-") for key in named]
    near = closest(option.lstrip("-"), options)
    cure = f"did you mean --{near}?" if near else f"it has {', '.join(f'--{x}' for x in options)}"
    after = "; settings come after the config" if kind is Run else ""
    return ValueError(
        f"{name} has no option {option}{after}: truncgauss {name} --help; "
        f"{cure if options else 'it has none'}"
    )


def _file(path: Path) -> Path:
    """The config file, be it given by its path or by the name of an experiment."""
    if starting_point.is_table(str(path)) and path.is_file():
        raise ConfigError(
            f"{ERROR}: {path} is a table, not a config: truncgauss new {shlex.quote(str(path))} "
            "writes one for it"
        )
    shipped = settings.folder("configs") / f"{path}.yaml"
    if path.exists() or path.parent != Path() or path.suffix:
        return path
    if str(path) not in settings.names():
        near = settings.suggestion(path, settings.names())
        raise ConfigError(f"{ERROR}: {path} is neither a file nor an experiment; {near}")
    return shipped


def _check(paths: Sequence[Path]) -> int:
    """Say of every file whether it is fine, and go on after one that is not."""
    if not paths:
        raise ValueError("check needs a file, or the name of an experiment")
    code = FINE
    for path in paths:
        try:
            config = settings.load(_file(path))
            config.read_data()
        except (ValueError, OSError, ImportError) as error:
            located = isinstance(error, ConfigError)
            print(error if located else f"{path}: {error}", file=sys.stderr)
            code = USAGE
        else:
            if note := settings.lost_schema(_file(path), config.experiment):
                print(note, file=sys.stderr)
            runs_of = f", a sweep of {len(settings.members(config))} runs" if config.sweep else ""
            _tell(f"{path}: fine, {settings.stem(config.experiment)}{runs_of}")
    return code


# ---------------------------------------------------------------- one run


def _run(asked: Run, changes: list[str], words: list[str]) -> int:
    folder = None
    if asked.resume and not asked.config:
        folder = asked.resume if summary.is_sweep(asked.resume) else unfinished(asked.resume)
        config = settings.load(folder / "config.yaml")
    elif asked.config and not asked.resume:
        config = settings.override(settings.load(_file(asked.config)), changes)
    else:
        raise ValueError("run takes either a config or --resume FOLDER")
    if asked.figures:
        writable(asked.figures)
    command = ["truncgauss", *words]
    if config.sweep:
        if asked.distributed:
            raise ValueError("--distributed shares one run: give it the config of one")
        if asked.figures:
            raise ValueError(f"a sweep has no figure for --figures (got {asked.figures})")
        folder = folder or work.sweep_folder(asked.runs, config)
        failed = work.sweep(folder, config, command, asked.save_every, asked.index)
        if asked.index is None:
            _tell(*summary.gather(folder))
        _tell(f"sweep folder: {folder}")
        return FAILED if failed else FINE
    if asked.index is not None:
        raise ValueError(f"--index is for a config with sweep: (got {asked.index})")
    address = (asked.coordinator, asked.num_processes, asked.process_index)
    if not asked.distributed and address != (None, None, None):
        raise ValueError("--coordinator and its company belong to --distributed")
    work.prepare(config, address if asked.distributed else None)
    if asked.distributed:
        import jax

        if jax.process_index():
            return FAILED if work.assist(config, asked.save_every) else FINE
    run = work.run(config, command, asked.save_every, asked.runs, folder)
    reason, lines = run.summary["reason"], run.summary["summary"]
    if asked.figures and not reason:
        publish(asked.figures, run)
    if reason:  # where it is said among the lines, or else after them
        said = f"failed: {reason}"
        lines = [said if x == reason else x for x in lines] + [said] * (reason not in lines)
    _tell(*lines)
    _tell(f"run folder: {run.folder}")
    picture = run.folder / f"{run.experiment}.png"
    if picture.is_file():
        _tell(f"figure: {picture}")
    return FAILED if reason else FINE


if __name__ == "__main__":
    console()
