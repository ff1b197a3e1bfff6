"""A process that has imported everything and forks runs of the command line, which end as told.

It reads a JSON object a line: the folder to work in, the words of the command line, and how it is
to be disturbed; it answers with a line about how the run ended. A run starts in milliseconds so.
"""

import json
import os
import resource
import select
import sys
import time

import jax
import matplotlib
import numpyro.infer
import optax

import truncgauss as tg
from truncgauss import cli, fitting, plotting

assert all((jax, matplotlib, numpyro, optax, plotting, fitting, tg.fit_mixture))


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def run(folder, words, number=None, after=0.0, most_bytes=None):
    """Run the command line in a child; send it a signal after some seconds.

    Args:
        folder: where.
        words: of the command line.
        number: the signal, if any.
        after: seconds until it is sent, from the first line that the run prints.
        most_bytes: the largest file that the child can write, as on a full disk.
    """
    (out, into), began = os.pipe(), time.monotonic()
    child = os.fork()
    if not child:
        os.close(out)
        for descriptor in (1, 2):
            os.dup2(into, descriptor)
        os.chdir(folder)
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        sys.argv = ["truncgauss", *words]
        cli.console()
    os.close(into)
    text, sent, spoke = b"", number is None, 0.0
    while True:
        waits = sent or not text
        left = None if waits else max(spoke + after - time.monotonic(), 0.0)
        ready, _, _ = select.select([out], [], [], left)
        if not ready:
            os.kill(child, number)
            sent = True
        elif part := os.read(out, 65536):
            spoke = spoke if text else time.monotonic()
            text += part
        else:
            break
    os.close(out)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"status": status, "text": text.decode(), "seconds": time.monotonic() - began}


if __name__ == "__main__":
    main()
