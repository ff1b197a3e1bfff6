"""What R and other packages write in formulas, and what stands for it here."""

import builtins
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truncgauss.tables.censoring import is_measurement, misspelt
from truncgauss.tables.columns import categories_of
from truncgauss.words.numbers import is_float

RANDOM = (
    "random effects stand outside of it: for R's (1 + week | patient) write "
    'tg.fit_clusters("y ~ week", cluster="patient", '
    'terms=(tg.RandomEffects("1 + week"), tg.Residual()), data=table).'
)
# What functions of R are here.
FUNCTIONS = {
    "factor": "a category is C(x)",
    "cbind": "several outcomes stand beside the formula, as in fit_regression(table[['a', 'b']], "
    "'~ x', data=table)",
    "s": "a smooth curve is a spline, bs(x, df=5)",
    "ns": "a natural spline is cr(x, df=5, constraints='center')",
    "ifelse": "write np.where(condition, a, b)",
    "ordered": "an ordered outcome is tg.Ordinal(values)",
}
REFERENCE = re.compile(r"\bC\(([^,()]+), *(?:\w+ *= *)?(['\"][^'\"]*['\"]) *\)")  # of no contrast


def refuse_words(text: str, by_name: Mapping[Any, Any]) -> None:
    """Raise ValueError for what R and other packages write in formulas, with what to write here."""
    plain = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", "", text)
    if re.search(r"(?<![\w.)\]])\.(?![\w.])", plain):
        left = text.partition("~")[0]
        names = [
            x for x in map(str, by_name) if not re.search(rf"(?<!\w){re.escape(x)}(?!\w)", left)
        ]
        others = " + ".join(x if x.isidentifier() else f"`{x}`" for x in names[:5])
        raise ValueError(
            f"formula {text!r}: a dot does not stand for the other columns here. Name those that "
            f"are meant, such as {others}{' + ...' if names[5:] else ''}."
        )
    if old := REFERENCE.search(text):
        new = f"C({old[1].strip()}, contr.treatment({old[2]}))"
        raise ValueError(f"formula {text!r}: for the category to compare with write {new}.")
    there = importlib.import_module("formulaic.transforms").TRANSFORMS
    for word in re.findall(r"(?<![\w.])(\w+)\(", plain):
        if word not in there and isinstance(getattr(np, word, None), np.ufunc):
            raise ValueError(
                f"formula {text!r}: there is no function {word!r}; write np.{word}, of NumPy."
            )
    if "Surv(" in plain:
        raise ValueError(
            f"formula {text!r}: in place of R's Surv(time, event) write the time, or its log, and "
            "censored_high=, which is that time where the event was not seen, and inf elsewhere."
        )
    outer, inner = re.sub(r"\{[^{}]*\}", "", plain), ""  # what stands in braces is Python
    while outer != inner:  # in brackets it may be a power too
        outer, inner = re.sub(r"\([^()]*\)", "...", outer), outer
    if power := re.search(r"(?<![\w.])([A-Za-z_][\w.]*) *(?:\*\*|\^) *(\d+)", outer):
        term = power[1].replace("...", "(...)")
        raise ValueError(
            f"formula {text!r}: {term}**{power[2]} is {term} alone, as powers are of sets of "
            f"terms. For the power of its values write I({term}**{power[2]})."
        )
    for word in re.findall(r"(?<![\w.])(?:as\.)?([A-Za-z_]\w*)\(", plain):
        if not (word in there or word in by_name or word == "offset" or hasattr(builtins, word)):
            known = ", ".join(sorted(x for x in there if x.islower() and x not in ("np", "contr")))
            cure = FUNCTIONS.get(word, f"there are {known}, and those of NumPy, such as np.sqrt")
            raise ValueError(f"formula {text!r}: there is no function {word!r}; {cure}.")


def refuse_numbers(column: Any, kinds: Sequence[str], name: str, text: str) -> None:
    """Raise ValueError for a covariate of texts (kinds) that are measurements: most of them numbers
    or limits, and with decimals or nearly all different, or these with units and nearly all
    different. Codes such as "1" and "2", and a few such as "2 doses", are categories."""
    if categories_of(column) is not None:
        return
    written = [kind for kind in kinds if is_measurement(kind)]
    decimals = any(sign in kind for kind in written for sign in ".,<>")
    all_different = len(kinds) > 10 and 2 * len(kinds) > len(column)
    if all_different and 2 * len(written) <= len(kinds):
        written = [kind for kind in kinds if is_measurement(kind) or misspelt(kind)]
    if 2 * len(written) > len(kinds) and (decimals or all_different):
        others = [kind for kind in kinds if not is_float(kind)]
        beside = f" beside {others[0]!r}, which is none" if others else ""
        first = next(filter(is_float, written), "")
        such = f", such as {first!r}{beside}" if first else f", such as {written[0]!r}"
        cure = misspelt(others[0]) if others else ""
        cure = f"{cure} Then convert them" if cure else "Convert them"
        raise ValueError(
            f"formula {text!r}: the covariate {name!r} holds numbers stored as texts"
            f"{such}. {cure}, table[{name!r}].astype(float); for "
            f"categories write C({name})."
        )
