"""TSR, the tensor-split runtime, from Python: one transformer over several unequal devices, with the same bits for
every tensor_split.

    import tsr

    with tsr.Model("model.gguf", [3, 1], devices="host:2") as model, tsr.Session(model) as session:
        for piece in session.generate("Once upon a time", 32):
            print(piece, end="", flush=True)

Each class is one object of the C interface; include/tsr/*.h is the manual of both. `lib` and `ffi` are that interface
itself (cffi), for calls that have no class here.
"""

from ._config import FitConfig, ModelConfig
from ._errors import (
    CancelledError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    Error,
    FormatError,
    FullError,
    InputOutputError,
    InvalidError,
    NotFoundError,
    OutOfMemoryError,
    RangeError,
    TimeLimitError,
    UnsupportedError,
)
from ._graph import Graph, Program, Tensor, Weights
from ._library import check, ffi, lib, text
from ._model import Model
from ._plan import Fit, Plan, fit, plan
from ._runtime import Runtime
from ._sampler import Sampler
from ._session import Session
from ._tokenizer import Detokenizer, Tokenizer
from ._topology import Topology

__version__ = text(lib.tsr_version())
"""The version of the library."""

__all__ = [
    "CancelledError",
    "ClosedError",
    "Detokenizer",
    "DeviceError",
    "DeviceLostError",
    "Error",
    "Fit",
    "FitConfig",
    "FormatError",
    "FullError",
    "Graph",
    "InputOutputError",
    "InvalidError",
    "Model",
    "ModelConfig",
    "NotFoundError",
    "OutOfMemoryError",
    "Plan",
    "Program",
    "RangeError",
    "Runtime",
    "Sampler",
    "Session",
    "Tensor",
    "TimeLimitError",
    "Tokenizer",
    "Topology",
    "UnsupportedError",
    "Weights",
    "check",
    "ffi",
    "fit",
    "lib",
    "plan",
]
