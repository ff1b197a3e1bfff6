"""BibTeX entries of the methods that a fit may rest on."""

ENTRIES = {
    "tobin1958": """@article{tobin1958,
  author  = {Tobin, James},
  title   = {Estimation of Relationships for Limited Dependent Variables},
  journal = {Econometrica},
  volume  = {26},
  number  = {1},
  pages   = {24--36},
  year    = {1958}
}""",
    "cohen1991": """@book{cohen1991,
  author    = {Cohen, A. Clifford},
  title     = {Truncated and Censored Samples: Theory and Applications},
  publisher = {Marcel Dekker},
  year      = {1991}
}""",
    "little2019": """@book{little2019,
  author    = {Little, Roderick J. A. and Rubin, Donald B.},
  title     = {Statistical Analysis with Missing Data},
  edition   = {3},
  publisher = {Wiley},
  year      = {2019}
}""",
    "olsen1978": """@article{olsen1978,
  author  = {Olsen, Randall J.},
  title   = {Note on the Uniqueness of the Maximum Likelihood Estimator for the Tobit Model},
  journal = {Econometrica},
  volume  = {46},
  number  = {5},
  pages   = {1211--1215},
  year    = {1978}
}""",
    "barndorff1978": """@book{barndorff1978,
  author    = {Barndorff-Nielsen, Ole},
  title     = {Information and Exponential Families in Statistical Theory},
  publisher = {Wiley},
  year      = {1978}
}""",
    "marquardt1963": """@article{marquardt1963,
  author  = {Marquardt, Donald W.},
  title   = {An Algorithm for Least-Squares Estimation of Nonlinear Parameters},
  journal = {Journal of the Society for Industrial and Applied Mathematics},
  volume  = {11},
  number  = {2},
  pages   = {431--441},
  year    = {1963}
}""",
    "messner2016": """@article{messner2016,
  author  = {Messner, Jakob W. and Mayr, Georg J. and Zeileis, Achim},
  title   = {Heteroscedastic Censored and Truncated Regression with crch},
  journal = {The R Journal},
  volume  = {8},
  number  = {1},
  pages   = {173--181},
  year    = {2016}
}""",
    "efron1978": """@article{efron1978,
  author  = {Efron, Bradley and Hinkley, David V.},
  title   = {Assessing the Accuracy of the Maximum Likelihood Estimator: Observed Versus Expected
             {Fisher} Information},
  journal = {Biometrika},
  volume  = {65},
  number  = {3},
  pages   = {457--482},
  year    = {1978}
}""",
    "white1982": """@article{white1982,
  author  = {White, Halbert},
  title   = {Maximum Likelihood Estimation of Misspecified Models},
  journal = {Econometrica},
  volume  = {50},
  number  = {1},
  pages   = {1--25},
  year    = {1982}
}""",
    "wedderburn1974": """@article{wedderburn1974,
  author  = {Wedderburn, Robert W. M.},
  title   = {Quasi-Likelihood Functions, Generalized Linear Models, and the {Gauss}--{Newton}
             Method},
  journal = {Biometrika},
  volume  = {61},
  number  = {3},
  pages   = {439--447},
  year    = {1974}
}""",
    "genz1992": """@article{genz1992,
  author  = {Genz, Alan},
  title   = {Numerical Computation of Multivariate Normal Probabilities},
  journal = {Journal of Computational and Graphical Statistics},
  volume  = {1},
  number  = {2},
  pages   = {141--149},
  year    = {1992}
}""",
}


def bibtex(software: str, names: tuple[str, ...]) -> str:
    """The entries of the software and of some methods, in BibTeX.

    Example:
        >>> print(bibtex("@software{s}", ("genz1992",)).splitlines()[0])
        @software{s}
    """
    return "\n\n".join([software, *(ENTRIES[name] for name in names)])
