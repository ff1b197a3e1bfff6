"""Columns of any DataFrame that has the interchange protocol `__dataframe__`.

References:
    Consortium for Python Data API Standards, "Python dataframe interchange protocol" (2022).
"""

import ctypes
from typing import Any

import numpy as np

KINDS = {0: "i", 1: "u", 2: "f"}
NAN, SENTINEL, BIT_MASK, BYTE_MASK = 1, 2, 3, 4


def columns_of_interchange(table: Any) -> dict[Any, Any]:
    """Columns by name: arrays, masked where a value is missing."""
    frame = table.__dataframe__()
    return {
        name: _column(frame.get_column_by_name(name), name) for name in frame.column_names()
    }  # fmt: skip


def _column(column: Any, name: Any) -> np.ma.MaskedArray:
    kind, bits, _, _ = column.dtype
    if kind == 20:
        raise ValueError(f"data: column {name!r} holds truth values; convert them to numbers.")
    if kind not in KINDS:
        return np.ma.masked_array(np.full(column.size(), None, object))
    chunks = [_chunk(chunk, f"{KINDS[int(kind)]}{bits // 8}") for chunk in column.get_chunks()]
    values = np.concatenate([chunk.data for chunk in chunks])
    return np.ma.masked_array(values, np.concatenate([chunk.mask for chunk in chunks]))


def _chunk(chunk: Any, dtype: str) -> np.ma.MaskedArray:
    """One chunk of a column, copied."""
    size, offset = chunk.size(), chunk.offset
    buffers = chunk.get_buffers()
    values = _memory(buffers["data"][0], dtype)[offset : offset + size].copy()
    kind, absent = chunk.describe_null
    mask = np.zeros(size, bool)
    if kind == NAN:
        mask = np.isnan(values)
    elif kind == SENTINEL:
        mask = values == absent
    elif kind == BYTE_MASK and buffers["validity"] is not None:
        mask = _memory(buffers["validity"][0], "u1")[offset : offset + size] == absent
    elif kind == BIT_MASK and buffers["validity"] is not None:
        bits = np.unpackbits(_memory(buffers["validity"][0], "u1"), bitorder="little")
        mask = bits[offset : offset + size] == absent
    return np.ma.masked_array(values, mask)


def _memory(buffer: Any, dtype: str) -> np.ndarray:
    """The numbers in a buffer, without a copy."""
    if not buffer.bufsize:
        return np.zeros(0, dtype)
    memory = (ctypes.c_char * buffer.bufsize).from_address(buffer.ptr)
    return np.frombuffer(memory, dtype, buffer.bufsize // np.dtype(dtype).itemsize)
