"""Graphs over split tensors: the layer below models (tsr/tensor.h, tsr/buffer.h, tsr/graph.h).

Shapes are numpy's: a weight is [rows, columns], an activation [n_tokens, elements]. C writes them the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

from ._config import Config
from ._errors import ClosedError, InvalidError
from ._handle import Alive, Handle, Object
from ._library import check, enum_names, enum_value, ffi, lib, text
from ._runtime import Runtime
from ._values import ProgramInfo, copy

if TYPE_CHECKING:
    from numpy.typing import NDArray

_dtypes = {"F32": np.dtype(np.float32), "I32": np.dtype(np.int32)}


class Tensor:
    """A tensor of Weights or of a Graph, which it keeps. It is gone when they are closed."""

    def __init__(self, owner: Weights | Graph, pointer: Any) -> None:
        self._owner, self._pointer = owner, pointer

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, the contiguous one last; two at least."""
        with self._owner._handle:
            ne = ffi.unpack(lib.tsr_tensor_ne(self._pointer), 4)
        while len(ne) > 2 and ne[-1] == 1:
            ne.pop()
        return tuple(reversed(ne))

    @property
    def type(self) -> str:
        """The type of the elements, "F32" or "Q8_0"."""
        with self._owner._handle:
            return enum_names("tsr_type")[lib.tsr_tensor_type(self._pointer)]

    @property
    def sharding(self) -> str:
        """How the value is spread over the devices: "none", "replicated", "split", "partial"."""
        with self._owner._handle:
            return text(lib.tsr_sharding_name(lib.tsr_tensor_sharding(self._pointer)))

    def device_bytes(self, device: int) -> int:
        """Bytes of the shard or copy on a device."""
        with self._owner._handle:
            return int(lib.tsr_tensor_device_bytes(self._pointer, device))

    def set(self, values: NDArray[Any]) -> None:
        """Scatter an array to the devices. Types of blocks are encoded from float32."""
        kind = self.type
        array = np.ascontiguousarray(values, _dtypes.get(kind, np.dtype(np.float32)))
        array = array.reshape((1,) * (2 - array.ndim) + array.shape)
        if array.shape != self.shape:
            raise InvalidError(f"an array of shape {array.shape} for a tensor of shape {self.shape}")
        with self._owner._handle:
            self._check_program()
            n = lib.tsr_tensor_bytes(self._pointer)
            data = ffi.from_buffer(array)
            if kind not in _dtypes:
                data = ffi.new("char[]", n)
                code = lib.tsr_tensor_type(self._pointer)
                check(lib.tsr_type_from_f32(code, ffi.from_buffer("float[]", array), data, array.size))
            check(lib.tsr_tensor_set(self._pointer, data, 0, n))

    def get(self) -> NDArray[Any]:
        """Gather the tensor: int32 or float32. Types of blocks are decoded."""
        kind, shape = self.type, self.shape
        out = np.empty(shape, _dtypes.get(kind, np.dtype(np.float32)))
        with self._owner._handle:
            self._check_program()
            n = lib.tsr_tensor_bytes(self._pointer)
            if kind in _dtypes:
                check(lib.tsr_tensor_get(self._pointer, ffi.from_buffer(out), 0, n))
            else:
                data = ffi.new("char[]", n)
                check(lib.tsr_tensor_get(self._pointer, data, 0, n))
                code = lib.tsr_tensor_type(self._pointer)
                check(lib.tsr_type_to_f32(code, data, ffi.from_buffer("float[]", out), out.size))
        return out

    def _check_program(self) -> None:
        """Inputs and outputs of a graph have memory while the program lives that was compiled last."""
        owner = self._owner
        if isinstance(owner, Graph) and (owner._program is None or owner._program.pointer is None):
            raise ClosedError("a tensor of a graph: the graph has no open program; compile it before")


class Weights(Object):
    """Tensors that are divided in one way and allocated together: `weights["w"]` is one of them.

    tensors: arrays [rows, columns] by name. type: in which they are stored, "f32" or "q8_0". tensor_split: proportions
    in device order; None: even shares. axis: 1: rows are divided, 0: columns. granule: rows or columns that stay
    together. replicated: instead, a whole copy on every device. Closing weights closes the graphs that use them.
    """

    def __init__(
        self,
        runtime: Runtime,
        tensors: Mapping[str, NDArray[Any]],
        tensor_split: Sequence[float] | None = None,
        *,
        type: str = "f32",
        axis: int = 1,
        granule: int = 0,
        replicated: bool = False,
    ) -> None:
        config = Config("tsr_split_buffer_config")
        config.pointer.axis, config.pointer.granule = axis, granule
        if tensor_split is not None:
            config.pointer.tensor_split = config.array("float", tensor_split)
            config.pointer.n_tensor_split = len(tensor_split)
        context, buffer = ffi.new("tsr_context **"), ffi.new("tsr_buffer **")

        def destroy(_: Any) -> None:
            lib.tsr_buffer_destroy(buffer[0])
            lib.tsr_context_destroy(context[0])

        self._tensors: dict[str, Any] = {}
        with runtime._handle as pointer:
            check(lib.tsr_context_create(pointer, context))
            self._runtime = runtime
            self._own(context[0], destroy, runtime._handle)
            kind = enum_value("tsr_type", type)
            for name, array in tensors.items():
                self._tensors[name] = _tensor(context[0], kind, name, np.shape(array))
            if replicated:
                place = lib.tsr_replicated_buffer_type(pointer)
            else:
                place = lib.tsr_split_buffer_type_ex(pointer, config.pointer)
            _made(place)
            check(lib.tsr_tensors_alloc(context[0], place, buffer))
        for name, array in tensors.items():
            self[name].set(array)

    def __getitem__(self, name: str) -> Tensor:
        return Tensor(self, self._tensors[name])


def _tensor(context: Any, kind: int, name: str, shape: tuple[int, ...]) -> Any:
    if len(shape) not in (1, 2, 3):
        raise InvalidError(f"{name}: an array of {len(shape)} dimensions; a tensor has 1 to 3")
    make = (lib.tsr_tensor_1d, lib.tsr_tensor_2d, lib.tsr_tensor_3d)[len(shape) - 1]
    return _made(make(context, kind, *reversed(shape), name.encode()))


def _made(pointer: Any) -> Any:
    """Constructors return NULL on failure."""
    if pointer == ffi.NULL:
        raise InvalidError(text(lib.tsr_last_error()))
    return pointer


class Graph(Object):
    """Ops over tensors. An op that fails raises, and the graph then cannot be compiled."""

    def __init__(self, runtime: Runtime) -> None:
        out = ffi.new("tsr_graph **")
        self._runtime = runtime
        self._program: Handle | None = None
        self._used: list[Weights] = []
        with runtime._handle as pointer:
            check(lib.tsr_graph_create(pointer, out))
            self._own(out[0], lib.tsr_graph_destroy, runtime._handle)

    def _op(self, function: Any, *arguments: Any) -> Tensor:
        with self._handle as graph:
            pointers = [self._borrow(a) if isinstance(a, Tensor) else a for a in arguments]
            return Tensor(self, _made(function(graph, *pointers)))

    def _borrow(self, tensor: Tensor) -> Any:
        owner = tensor._owner
        if owner.closed:
            raise ClosedError("a tensor whose weights or graph were closed")
        if owner._handle.tree is not self._handle.tree or (isinstance(owner, Graph) and owner is not self):
            raise InvalidError("a tensor of another graph or runtime")
        if isinstance(owner, Weights) and owner not in self._used:
            owner._handle.depend(self._handle)
            self._used.append(owner)
        return tensor._pointer

    def input(self, name: str, shape: tuple[int, int], type: str = "f32") -> Tensor:
        """A tensor [n_tokens, elements] that is set after compiling; "f32" or "i32"."""
        return self._op(lib.tsr_graph_input, enum_value("tsr_type", type), shape[1], shape[0], name.encode())

    def output(self, tensor: Tensor) -> Tensor:
        """Keep a tensor until the run is over, so that get() can read it."""
        return self._op(lib.tsr_graph_output, tensor)

    def get_rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows ids of a table."""
        return self._op(lib.tsr_get_rows, table, ids)

    def mul_mat(self, w: Tensor, x: Tensor) -> Tensor:
        """x w^T: [n_tokens, rows of w]."""
        return self._op(lib.tsr_mul_mat, w, x)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight."""
        return self._op(lib.tsr_rms_norm, x, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """(x - mean) / sqrt(variance + eps) * weight + bias."""
        return self._op(lib.tsr_layer_norm, x, weight, ffi.NULL if bias is None else bias, eps)

    def rope(self, x: Tensor, table: Tensor, head_dim: int, interleaved: bool) -> Tensor:
        """Rotary embedding of each head by an input of (cos, sin) pairs."""
        return self._op(lib.tsr_rope, x, table, head_dim, interleaved)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up."""
        return self._op(lib.tsr_swiglu, gate, up)

    def geglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) * up."""
        return self._op(lib.tsr_geglu, gate, up)

    def gelu(self, x: Tensor) -> Tensor:
        """gelu(x) in its tanh form."""
        return self._op(lib.tsr_gelu, x)

    def relu_squared(self, x: Tensor) -> Tensor:
        """max(x, 0)^2."""
        return self._op(lib.tsr_relu_squared, x)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b; b may have one row."""
        return self._op(lib.tsr_add, a, b)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """factor * x."""
        return self._op(lib.tsr_scale, x, factor)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""
        return self._op(lib.tsr_softcap, x, cap)

    def concat(self, parts: Sequence[Tensor], n_heads: int = 1) -> Tensor:
        """The elements of several activations one after another, of each of n_heads heads."""
        with self._handle as graph:
            pointers = [self._borrow(part) for part in parts]
            return Tensor(self, _made(lib.tsr_concat(graph, pointers, len(pointers), n_heads)))

    def softmax(self, x: Tensor, factor: float = 1) -> Tensor:
        """softmax(factor * x) over the elements of each token."""
        return self._op(lib.tsr_softmax, x, factor)

    def argmax(self, x: Tensor) -> Tensor:
        """int32 [n_tokens, 1]: the index of the largest element."""
        return self._op(lib.tsr_argmax, x)

    def compile(self, *, reduction: str = "exact", activation_bits: int = 16, timeout_ns: int = 0) -> Program:
        """The program of the outputs, with its memory. Inputs and outputs are those of the program compiled last."""
        return Program(self, reduction, activation_bits, timeout_ns)


class Program(Object):
    """A compiled graph."""

    def __init__(self, graph: Graph, reduction: str, activation_bits: int, timeout_ns: int) -> None:
        config = Config("tsr_program_config").pointer
        config.reduction = enum_value("tsr_reduction", reduction)
        config.activation_bits, config.timeout_ns = activation_bits, timeout_ns
        out = ffi.new("tsr_program **")
        self._graph = graph
        with graph._handle as pointer:
            check(lib.tsr_program_compile(pointer, config, out))
            self._alive = Alive("Program", out[0], lib.tsr_program_destroy)
            self._own(out[0], self._alive.destroy, graph._handle)
            graph._program = self._handle

    def run(self) -> None:
        """Run once and wait."""
        with self._handle as program:
            check(lib.tsr_program_run(program))

    def cancel(self) -> None:
        """End the run of the program, or, if it does not run, its next run: it raises CancelledError. For other
        threads; does not wait."""
        with self._alive as program:
            check(lib.tsr_program_cancel(program))

    def withdraw_cancel(self) -> bool:
        """Withdraw a cancel() that no run has taken. Returns whether there was one."""
        with self._alive as program:
            return bool(lib.tsr_program_withdraw_cancel(program))

    @property
    def info(self) -> ProgramInfo:
        """What the program does."""
        info = ffi.new("tsr_program_info *")
        with self._handle as program:
            lib.tsr_program_get_info(program, info)
        return copy(ProgramInfo, info)
