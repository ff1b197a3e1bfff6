"""Names that are not there, and the ones that may have been meant."""

import difflib
from collections.abc import Iterable


def closest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str:
    """The name that is most like a word, whatever its capitals, or the only one that begins with
    it; empty if there is none."""
    texts = {name.casefold(): name for name in known if isinstance(name, str)}
    plain = str(word).casefold()
    begun = [name for name in texts if len(plain) > 2 and name.startswith(plain)]
    near = difflib.get_close_matches(plain, texts, 1, cutoff) or begun[len(begun) != 1 :][:1]
    return texts[near[0]] if near else ""


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
