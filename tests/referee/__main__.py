"""`python -m tests.referee --minutes 60 --seed 1 [--law NAME]`: look for wrong answers."""

import argparse
import sys

import tests.conftest  # noqa: F401  how tests compile, and where programs are kept
from tests.referee import LAWS, referee


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.referee", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the cases (1)")
    parser.add_argument("--law", action="append", choices=sorted(LAWS), help="this law alone")
    parser.add_argument("--examples", type=int, default=20, help="cases of a law in a turn (20)")
    asked = parser.parse_args()
    show = lambda line: print(line, flush=True)
    return 1 if referee(asked.minutes, asked.seed, asked.law, asked.examples, show) else 0


sys.exit(main())
