"""Names that are known, and for one that is not among them the one that may have been meant."""

import difflib
import re
from collections.abc import Iterable
from typing import Any


def is_key(value: Any) -> bool:
    """Whether a value is a random key of JAX, of either kind."""
    return str(getattr(value, "dtype", "")).startswith(("key", "uint"))


def check_choice(
    value: object, known: Iterable[str], what: str, advice: str = "", others: str = ""
) -> None:
    """Raise ValueError for a word that is none of these, with the one that may have been meant. The
    argument begins the message, and advice ends it; others are what may be given instead of a word,
    with a comma or "or" before it."""
    words = tuple(known)
    if not (isinstance(value, str) and value in words):
        there = ", ".join(f'"{word}"' for word in words)
        guess = meant(value, words) or "."
        raise ValueError(f"{what} must be one of {there}{others}, got {value!r}{guess}{advice}")


def closest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """The name of what other packages call so, or that is most like a word, whatever its capitals
    and the order of two in brackets, or the only one that has it in it; empty if there is none."""
    from truncgauss.words.elsewhere import ELSEWHERE  # of which only wrong names have use

    texts = {name.casefold(): name for name in known if isinstance(name, str)}
    plain = str(word).casefold()
    turned = re.sub(r"\[(.*), (.*)\]$", r"[\2, \1]", plain)  # an entry of a symmetric matrix
    others = turned, *map(str.casefold, ELSEWHERE.get(plain, ()))
    same = [name for name in others if name in texts]
    within = [
        name
        for name in texts
        if (name.startswith(plain) and len(plain) > 2) or (plain in name and len(plain) > 4)
    ]
    near = same or difflib.get_close_matches(plain, texts, 1, cutoff)
    return texts[(near or within)[0]] if near or len(within) == 1 else ""


def meant(word: object, known: Iterable[object]) -> str:
    """The end of a sentence about a name that is not there: a guess at what was meant, if any."""
    close = closest(word, known)
    return f"; did you mean {close!r}?" if close else ""


def listed(known: Iterable[object], word: object, quoted: bool = False) -> str:
    """The first twenty names that there are, and of several a guess at the one that was meant: the
    end of a sentence about a word that is none of them."""
    names = [str(name) if isinstance(name, str) else name for name in known]
    texts = ", ".join(map(repr if quoted else str, names[:20]))
    more = f" and {len(names) - 20} more" if names[20:] else ""
    return texts + more + (meant(word, names[1:] and names) or ".")


def suggestion(word: object, known: Iterable[object]) -> str:
    """A guess at what was meant, else what there is to choose from."""
    known = list(known)
    return meant(word, known).removeprefix("; ") or f"known: {', '.join(map(str, known))}"
