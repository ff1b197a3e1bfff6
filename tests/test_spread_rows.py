"""Rows of which each process holds its own: the page about clusters on two processes, and what
refuses rows that lie on others."""

import os
import subprocess
import sys

import pytest
from test_distributed import ends, port
from test_pages import pairs_of

WORK = """
import pathlib, sys, jax, jax.numpy as jnp, numpy as np, optax, truncgauss as tg
meeting, index, page, state = sys.argv[1:]
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize(meeting, 2, int(index))
exec(open(page).read())
print("the page ends")

x = spread[:, 0]
exact = lambda: tg.Observations.exact(x)
for call in (
    lambda: tg.fit_regression(x, {"one": x}),
    lambda: tg.fit_truncated_normal(x, low=-9.0),
    lambda: tg.fit_selection(x, {"one": x}, x > 0, {"one": x}),
    lambda: tg.fit_clusters(x, {"one": x}, x),
    lambda: tg.quantile_residuals((exact(), jnp.zeros(1), jnp.eye(1))),
    lambda: tg.fit_observations(exact()),
    lambda: tg.fit_mixture(exact(), 2),
    lambda: tg.log_likelihood(exact(), jnp.zeros(1), jnp.eye(1)),
    lambda: tg.Statistics.from_rows(x),
):
    try:
        print("accepted", call())
    except (RuntimeError, ValueError) as error:
        text = str(error)
        assert "non-addressable" in text or "other processes" in text or "own rows" in text, text

def steps(count, rows=spread):
    objective = jax.tree_util.Partial(loss, rows)
    with tg.fitting.resumable(state):
        return tg.minimize(objective, 0.3, optax.sgd(1e-2), count, tolerance=0.0, progress=False)

whole = steps(9)
pathlib.Path(state).unlink()
assert steps(4).num_steps == 4
again = steps(9)
assert again.num_steps == 9 and len(again.loss_trace) == len(whole.loss_trace)
np.testing.assert_allclose(again.params, whole.params, rtol=1e-12)
try:
    steps(12, spread + 1e-9)
except ValueError as error:
    print("other rows:", error)
"""


@pytest.mark.slow
def test_two_processes_print_what_the_page_says_and_lose_no_rows(tmp_path):
    """Each holds 20 of 40 rows; a minimisation of rows on both goes on from its file."""
    code, shown = map("".join, zip(*pairs_of("docs/clusters.md")))
    script = tmp_path / "page.py"
    script.write_text(code)
    meeting = f"127.0.0.1:{port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, meeting, str(i), script, tmp_path / f"{i}.npz"],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
        )
        for i in range(2)
    ]  # fmt: skip
    for code, out, err in ends(processes):
        assert code == 0, err
        printed = "".join(line for line in out.splitlines(True) if not line.startswith("[Gloo]"))
        page, _, rest = printed.partition("the page ends\n")
        assert page == shown
        assert "accepted" not in rest and rest.startswith("other rows:"), rest
