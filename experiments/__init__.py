"""Experiments, one stem in three places: experiments/x.py, configs/x.yaml and figures/x.*.

An experiment is a module with two functions and one closing line:

```python
def run(config) -> dict: ...      # computes; opens no file but its data, draws nothing
def plot(results) -> Figure: ...  # draws, through truncgauss.plotting alone

if __name__ == "__main__":
    raise SystemExit(cli.main_experiment(__file__))
```

``config`` is the frozen model of that experiment in ``truncgauss.config.EXPERIMENTS``; float64
and the devices are set before ``run`` starts. An experiment that fits names a second argument,
``run(config, checkpoint)``: a folder, for ``tg.fit(..., checkpoint=checkpoint / "fit.npz")``. If
the run is interrupted (``KeyboardInterrupt``, also for SIGTERM; let it pass) with a file in there,
``truncgauss run --resume runs/<folder>`` calls ``run`` with the same settings and folder again.
Without one, nothing is kept. Experiments import each other relatively, ``from . import y``: once
installed they live in ``truncgauss.experiments``.

``run`` returns names with arrays, numbers, booleans or texts (dictionaries of them may nest; the
stored name is then ``outer/inner``). They reach ``plot`` as NumPy arrays and end in
``result.npz``; scalars also in ``summary.json``. Three names are special:

- ``summary``: a sequence of lines, the last thing that the user reads;
- ``metrics``: a sequence of dictionaries of scalars, one line each in ``metrics.jsonl``;
- ``failed``: why the numbers are not to be trusted; empty or absent if they are. The run folder
  is written all the same, says so, and the exit code is 1. An ``ArithmeticError``
  (``FloatingPointError`` among them) that leaves ``run`` counts likewise.

A ``ValueError`` or ``OSError`` that leaves ``run`` is taken for the user's: settings or data that
cannot be used, exit code 2. Its message is all that is printed, so it is a whole sentence.
"""
