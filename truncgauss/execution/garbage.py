"""Python's garbage collection, while many objects are made that stay."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """A context without garbage collection.

    Imports and tracing make many objects, nearly all of which stay: each full collection then walks
    through all of JAX for nothing, a tenth of the time of a first call.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
