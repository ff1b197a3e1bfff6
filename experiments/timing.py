"""Seconds of calls, the first of which compiles."""

import math
import time

import jax
import numpy as np


def calls(function, many, clock=time.perf_counter):
    """Outputs and seconds of calls, one for each of many inputs, one after the other."""
    outputs, seconds = [], []
    for inputs in many:
        start = clock()
        outputs.append(jax.block_until_ready(function(*inputs)))
        seconds.append(clock() - start)
    return outputs, seconds


def timed(function, inputs, num_calls, clock=time.perf_counter):
    """The output, seconds of the first call and the median of later ones, or the first if alone."""
    outputs, seconds = calls(function, [inputs] * (1 + num_calls), clock)
    later = float(np.median(seconds[1:] or seconds))
    return {"output": outputs[-1], "first_seconds": seconds[0], "seconds": later}


def compiled(function, inputs, num_calls, clock=time.perf_counter):
    """As `timed`, compilation in the first call, with the memory in bytes: temporary, and held with
    inputs and outputs."""
    start = clock()
    ready = function.lower(*inputs).compile()
    spent = clock() - start
    cost = timed(ready, inputs, num_calls, clock)
    memory = ready.memory_analysis()
    size = memory.temp_size_in_bytes if memory else math.nan
    held = size + memory.argument_size_in_bytes + memory.output_size_in_bytes if memory else size
    return cost | {"first_seconds": spent + cost["first_seconds"], "bytes": size, "held": held}
