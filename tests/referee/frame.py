"""Laws, cases, the search for a case that breaks a law, and the script that shows it.

A case is a script of at most ten lines, which is run as it is printed: what fails here fails
wherever it is pasted. Its last expression is compared with an oracle that shares no code with the
package. Hypothesis draws the cases and makes the first that fails as small as it can.
"""

import textwrap
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

# A seed draws the same cases whatever modules are loaded: no constants are taken from their source.
providers._get_local_constants = lambda: providers._local_constants
PRELUDE = "import jax, jax.numpy as jnp, numpy as np, truncgauss as tg\n"
PRELUDE += 'jax.config.update("jax_enable_x64", True)\n'
SHRINK = 40.0  # seconds in which a failure is made smaller
TURN = 60.0  # seconds that a law has in its turn
FORGET = 100  # cases after which compiled programs are forgotten
FEW, MOST = 10, 0.9  # cases from which on a law must say something, and the share that need not
SILENT = {"not converged": "fits that do not converge", "refused": "cases that are refused"}


class Case(NamedTuple):
    """A script, what it says, and the oracle of that.

    Args:
        kind: words for what is tried; failures of one kind are printed once.
        setup: lines of Python, after those of PRELUDE.
        ours: an expression of what the package says, a number or an array.
        oracle: maps the names of the script to the true value and a bound on its error.
        tol: the difference that is allowed, relative to 1 + |truth|.
        stderr: an expression of the standard error of `ours`, of which six are allowed.
        refused: whether a ValueError with a sentence is a right answer too.
        must_refuse: whether it is the only right answer.
        says: what the sentence then must hold.
    """

    kind: str
    setup: str
    ours: str
    oracle: Callable[[dict[str, Any]], tuple[Any, Any]]
    tol: Any = 1e-7
    stderr: str = "0.0"
    refused: bool = False
    must_refuse: bool = False
    says: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        return f"{PRELUDE}{self.setup.strip()}\nprint({self.ours})"


class Broken(AssertionError):
    """A case in which the package and the oracle differ."""


class Enough(BaseException):
    """The time for one search is over."""


def outcome(case: Case) -> str:
    """How a case ends: "equal", "refused" or "not converged"; raises Broken otherwise."""
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", category=RuntimeWarning, module=r"truncgauss\.")
        return _outcome(case, names)


def _outcome(case: Case, names: dict[str, Any]) -> str:
    assert case.script.count("\n") < 10, f"more than ten lines:\n{case.script}"
    try:
        exec(PRELUDE + case.setup, names)
        fit = names.get("fit")
        if fit is not None and not np.all(fit.converged):
            return "not converged"
        ours = np.asarray(eval(case.ours, names), float)
        slack = 6 * np.asarray(eval(case.stderr, names), float)
    except Exception as error:
        refusal = isinstance(error, (ValueError, TypeError)) and len(str(error)) > 20
        if refusal and (case.refused or case.must_refuse):
            if silent := [words for words in case.says if words not in str(error)]:
                raise Broken(f"{error}; the oracle: it says {silent}") from error
            return "refused"
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        raise Broken(f"{where}: {error}; the oracle: an answer") from error
    if case.must_refuse:
        raise Broken(f"printed {ours}; the oracle: this must be refused by a sentence")
    try:
        truth, error = (np.asarray(x, float) for x in case.oracle(names))
    except hypothesis.errors.UnsatisfiedAssumption:
        raise
    except Exception as error:
        raise Broken(f"printed {ours}; the oracle itself failed: {error!r}") from error
    ours, truth, error, slack = np.broadcast_arrays(ours, truth, error, slack)
    same = (ours == truth) | (np.isnan(ours) & np.isnan(truth))
    with np.errstate(invalid="ignore"):
        near = abs(ours - truth) <= case.tol * (1 + abs(truth)) + 5 * error + slack
    if not np.all(same | near):
        raise Broken(f"printed {ours}; the oracle: {truth} +- {error}")
    return "equal"


LAWS: dict[str, st.SearchStrategy[Case]] = {}


def law(draws: Callable[..., Case]) -> Callable[..., Case]:
    """Registers a function that draws a case, under its name."""
    LAWS[draws.__name__] = st.composite(draws)()
    return draws


class Failure(NamedTuple):
    """The smallest case of one kind that breaks a law."""

    law: str
    seed: int
    case: Case
    message: str

    def __str__(self) -> str:
        said = textwrap.shorten(self.message, 1000)
        return f"# {self.law}, seed {self.seed}: {self.case.kind}\n# {said}\n{self.case.script}\n"


def search(
    name: str, seed: int, examples: int, until: float, known: set[str]
) -> tuple[Counter[str], Failure | None]:
    """How the cases of a law with this seed end, and the smallest that breaks it, if one does.

    Args:
        name: the law.
        seed: of the cases.
        examples: how many to draw at most.
        until: the time, of `time.monotonic`, at which to stop.
        known: kinds of failures that were printed before; they are counted alone.
    """
    tally: Counter[str] = Counter()
    smallest: Failure | None = None
    stuck: dict[str, Case] = {}
    limit = until

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(LAWS[name])
    def holds(case: Case) -> None:
        nonlocal smallest, limit
        if time.monotonic() > limit:
            raise Enough
        try:
            ends = outcome(case)
            stuck.update({} if case.must_refuse else {ends: case})
            if smallest is None:
                tally[ends] += 1
                if tally.total() % FORGET == 0:
                    jax.clear_caches()
        except Broken as broken:
            if f"{name}: {case.kind}" in known:
                tally["broken as before"] += 1
                return
            if smallest is None:
                tally["broken"] += 1
                limit = time.monotonic() + SHRINK
            if smallest is None or len(case.script) <= len(smallest.case.script):
                smallest = Failure(name, seed, case, str(broken))
            raise

    try:
        holds()
    except (Broken, Enough, hypothesis.errors.FlakyFailure):
        pass
    total = tally.total()
    for ends, words in SILENT.items():
        if smallest is None and ends in stuck and total >= FEW and tally[ends] > MOST * total:
            if f"{name}: {words}" not in known:
                message = f"{tally[ends]} of {total} were {ends}; the oracle: most have an answer"
                smallest = Failure(name, seed, stuck[ends]._replace(kind=words), message)
    return tally, smallest


def referee(
    minutes: float,
    seed: int,
    laws: list[str] | None = None,
    examples: int = 20,
    show: Any = print,
    turns: int | None = None,
) -> list[Failure]:
    """Failures of the laws in this time: each law in turn, with a new seed in each round.

    Args:
        minutes: the time that all laws have together.
        seed: of the first round; the seed of a search is made of it, of the round and of the law.
        laws: their names; all where it is None.
        examples: cases of one search.
        show: what prints a line.
        turns: how many rounds to make at most.
    """
    end, failures, known = time.monotonic() + 60 * minutes, [], set()
    tallies: dict[str, Counter[str]] = {name: Counter() for name in laws or LAWS}
    spent: Counter[str] = Counter()
    turn = 0
    while time.monotonic() < end and turn != turns:
        for name in tallies:
            if time.monotonic() >= end:
                break
            begun = time.monotonic()
            own = zlib.crc32(f"{seed} {turn} {name}".encode())
            tally, failure = search(name, own, examples, min(end, begun + TURN), known)
            jax.clear_caches()  # 10 GB after half an hour
            tallies[name] += tally
            spent[name] += time.monotonic() - begun
            if failure:
                failures.append(failure)
                known.add(f"{name}: {failure.case.kind}")
                show(failure)
        turn += 1
    for name, tally in tallies.items():
        ends = ", ".join(f"{count} {word}" for word, count in sorted(tally.items())) or "no case"
        show(f"{name}: {ends}; {spent[name]:.0f} s")
    return failures
