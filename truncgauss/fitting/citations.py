"""BibTeX entries of the methods that a fit may rest on, from `references.bib`."""

import functools
import re
from importlib import resources


@functools.cache
def entries() -> dict[str, str]:
    """The entries of `references.bib` by their keys."""
    text = resources.files(__package__).joinpath("references.bib").read_text("utf-8")
    parts = text.strip().split("\n\n")
    return {re.split("[{,]", part, maxsplit=2)[1]: part for part in parts}


def bibtex(software: str, names: tuple[str, ...]) -> str:
    """The entries of the software and of some methods, in BibTeX.

    Example:
        >>> print(bibtex("@software{s}", ("genz1992",)).splitlines()[0])
        @software{s}
    """
    return "\n\n".join([software, *(entries()[name] for name in names)])
