"""Arrays of numpy that the library reads or writes in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

import numpy as np

from ._errors import InvalidError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def int32_array(name: str, values: Iterable[int]) -> NDArray[np.int32]:
    """A vector of int32: the array itself if it is one, otherwise a copy of the numbers."""
    if not isinstance(values, np.ndarray):
        values = np.array([values] if isinstance(values, (int, np.integer)) else list(values))
        if values.size == 0:
            values = values.astype(np.int32)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise InvalidError(f"{name}: an array of {values.ndim} dimensions of {values.dtype}; give a vector of integers")
    if values.dtype != np.int32 and values.size and (values.min() < -(2**31) or values.max() >= 2**31):
        raise InvalidError(f"{name}: a number is out of the range of 32 bits")
    return np.ascontiguousarray(values, np.int32)


def float_rows(name: str, out: NDArray[np.float32] | None, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The caller's array to be written in place, or a new one."""
    if out is None:
        return np.empty(shape, np.float32)
    if out.dtype != np.float32 or out.shape != shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidError(
            f"{name}: {out.dtype} of shape {out.shape}; give a writable, contiguous float32 array of shape {shape}"
        )
    return out
