"""Experiments: each a folder `experiments/x/`, with `configs/x.yaml` and `figures/x.*`.

An experiment brings three things, in the modules `settings`, `run` and `plot` of its folder; one of
your own may hold all three in a single file, which a config names by its path, as in
`experiment: mine.py`:

```python
from truncgauss import config


class Settings(config.Experiment):  # its keys, next to experiment, seed, devices and dtype
    limits: config.Limits


def run(settings) -> dict: ...      # computes; opens no file but its data, draws nothing
def plot(results): ...              # returns a matplotlib Figure, made by truncgauss.plotting
```

`settings` must not import JAX, so that a config is checked in a moment. Float64 and the devices are
set before `run` starts. `Settings` says `spreads: ClassVar[bool] = True` if `run` shares its work
among `settings.devices`, as with `tg.parallel.rows`; elsewhere more than one is an error. It may
say `cached: ClassVar[bool] = False`, where compilation is timed and must not come from an earlier
run. If a run is interrupted (`KeyboardInterrupt`, also for SIGTERM; let it pass),
`truncgauss run --resume runs/<folder>` calls `run` with the same settings again: `tg.minimize` goes
on where it was, what was called as `truncgauss.fitting.computed(name, function, *args)` is not
called again, and other fits begin anew.
Built-in experiments import each other relatively: they belong to the package
`truncgauss.experiments`, wherever their folders are.

`plot` may return a pair, the Figure and the bytes of a GIF.

`run` returns names with arrays, numbers, booleans or texts (dictionaries of them may nest; the
stored name is then `outer/inner`). They reach `plot` as NumPy arrays and end in `result.npz`;
scalars also in `summary.json`. Names may hold any character. Three names are special:

- `summary`: a sequence of lines, printed at the end;
- `metrics`: a sequence of dictionaries of scalars, one line each in `metrics.jsonl`;
- `failed`: why the results cannot be trusted; empty or absent if they can. The run folder is
  written all the same and says so, and the exit code is 1. An `ArithmeticError`
  (`FloatingPointError` among them) that leaves `run` counts likewise.

A `ValueError` or `OSError` that leaves `run` is taken for the user's: settings or data that cannot
be used, exit code 2. Its message is all that is printed, so it is a whole sentence.
"""
