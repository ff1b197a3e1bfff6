"""The command line as `python -m truncgauss`."""

from truncgauss.cli import console

if __name__ == "__main__":
    console()
