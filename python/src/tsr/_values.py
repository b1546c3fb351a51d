"""Structs of the library as values of Python: copies, which stay valid when the object is closed.

A class has the fields of the C struct of its name (PlanDevice: tsr_plan_device); the headers say what each field means.
Sizes are bytes. A limit that C writes as SIZE_MAX is None. Enums are their names. Numbers by memory owner ("weights",
"kv", ...) or by class of tensors ("attention", "ffn", "output") are dicts.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from ._library import enum_names, ffi, lib, text

_T = TypeVar("_T")


@dataclass(frozen=True)
class ModelInfo:
    """tsr_model_info: a loaded model."""

    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    n_params: int
    weight_bytes: int


@dataclass(frozen=True)
class PlanInfo:
    """tsr_plan_info: what a plan is about."""

    n_devices: int
    mode: str
    n_ctx: int
    n_ctx_train: int
    n_seq_max: int
    n_batch: int
    type_k: str
    type_v: str
    n_layers: int
    n_windowed: int
    window: int
    n_granules: dict[str, int]
    granule_size: dict[str, int]
    n_all_reduces: int
    n_transfers: int
    runnable: bool
    has_experts: bool
    expert_split: str
    exact_arena: bool
    fits: bool
    n_ctx_fitted: bool
    n_prompt: int
    n_new: int
    n_seq: int
    prompt_tokens: int


@dataclass(frozen=True)
class PlanDevice:
    """tsr_plan_device: what a plan puts on one device."""

    name: str
    kind: str
    used: bool
    requested: float
    achieved: dict[str, float]
    granules: dict[str, int]
    n_layers: int
    bytes: dict[str, int]
    total_bytes: int
    kv_windowed_bytes: int
    memory_cap: int | None
    margin_bytes: int
    free_bytes: int | None
    missing_bytes: int
    arena_bound_bytes: int
    prompt_granules: dict[str, int]
    prompt_bytes: int


@dataclass(frozen=True)
class FitChoice:
    """tsr_fit_choice: the values that a fit chooses."""

    n_ctx: int
    type_k: str
    type_v: str
    n_gpu_layers: int
    n_cpu_moe: int


@dataclass(frozen=True)
class FitStep:
    """tsr_fit_step: one cut of a fit. device_bytes has an entry for each device that there may be."""

    cut: str
    before: FitChoice
    after: FitChoice
    text: str
    saved_bytes: int
    device_bytes: tuple[int, ...]


@dataclass(frozen=True)
class DeviceInfo:
    """tsr_device_info: an opened device."""

    name: str
    process: int
    kind: str
    isa: str
    n_threads: int
    memory_cap: int | None
    used: dict[str, int]
    lost: bool
    dropped: bool
    gone: bool


@dataclass(frozen=True)
class DeviceMemory:
    """tsr_device_memory: one device's memory."""

    name: str
    cap: int | None
    used: dict[str, int]
    used_total: int
    peak: dict[str, int]
    peak_total: int
    viewed: int
    kv_committed: int
    runtime: int
    library: int
    taken: int
    pinned: int
    pinned_peak: int
    device_free: int
    device_total: int
    free_at_open: int
    elsewhere: int


@dataclass(frozen=True)
class SessionStats:
    """tsr_session_stats: counters of a session."""

    n_steps: int
    n_tokens: int
    n_all_reduces: int
    n_programs: int
    kv_pages_used: int
    kv_pages: int
    kv_committed_bytes: int


@dataclass(frozen=True)
class ProgramInfo:
    """tsr_program_info: what a compiled program does."""

    n_devices: int
    n_all_reduces: int
    n_all_gathers: int
    n_transfers: int


@dataclass(frozen=True)
class Package:
    """tsr_package: a socket."""

    os_index: int
    first_core: int
    n_cores: int
    cpu_model: str


@dataclass(frozen=True)
class NumaNode:
    """tsr_numa_node: memory, and the cores that are nearest to it."""

    os_index: int
    first_core: int
    n_cores: int
    memory_bytes: int
    bytes_per_s: float
    kind: str
    rate_guessed: bool


@dataclass(frozen=True)
class Core:
    """tsr_core: a core."""

    os_index: int
    package: int
    numa_node: int
    first_pu: int
    n_pus: int
    cache: tuple[int, ...]
    efficiency: int


@dataclass(frozen=True)
class PcieLink:
    """tsr_pcie_link: generation and lanes."""

    generation: int
    width: int


@dataclass(frozen=True)
class Gpu:
    """The first fields of tsr_gpu, without the clocks."""

    ordinal: int
    name: str
    uuid: str
    bus_id: str
    numa_node: int
    is_mig: bool
    integrated: bool
    n_sms: int
    compute_capability: int
    tensor_flops: float
    memory_bytes: int
    memory_free_bytes: int
    memory_bytes_per_s: float
    pcie: PcieLink
    pcie_max: PcieLink
    pcie_bytes_per_s: float
    guessed: int


def struct_name(cls: type) -> str:
    """The C struct that a class copies."""
    return "tsr" + re.sub("([A-Z])", lambda match: "_" + match[1].lower(), cls.__name__)


# Arrays that are indexed by an enum, by their names; all others are tuples.
_indexed = {
    **dict.fromkeys(("bytes", "used", "peak"), "tsr_memory_owner"),
    **dict.fromkeys(("n_granules", "granule_size", "achieved", "granules", "prompt_granules"), "tsr_split_class_id"),
}
_classes = {"tsr_fit_choice": FitChoice, "tsr_pcie_link": PcieLink}


@functools.lru_cache(maxsize=None)
def index_names(enum: str) -> tuple[str, ...]:
    """The names of 0, 1, ... in an enum that counts."""
    if enum == "tsr_split_class_id":
        return tuple(text(lib.tsr_split_class_name(i)) for i in range(lib.TSR_CLASS_COUNT))
    return tuple(enum_names(enum)[i] for i in range(lib.TSR_MEMORY_COUNT))


def _value(name: str, kind: Any, value: Any) -> Any:
    if kind.kind == "array":
        if kind.item.cname == "char":
            return ffi.string(value).decode("utf-8", "replace")
        values = tuple(_value("", kind.item, item) for item in value)
        return dict(zip(index_names(_indexed[name]), values)) if name in _indexed else values
    if kind.kind == "enum":
        return enum_names(kind.cname.removeprefix("enum "))[int(ffi.cast("int", value))]
    if kind.kind == "struct":
        return copy(_classes[kind.cname.removeprefix("struct ")], value)
    if kind.cname == "size_t" and value == 2 ** (8 * ffi.sizeof("size_t")) - 1:
        return None
    return value


@functools.lru_cache(maxsize=None)
def _fields(cls: Any) -> list[tuple[str, Any]]:
    kinds = dict(ffi.typeof(struct_name(cls)).fields)
    return [(field.name, kinds[field.name].type) for field in dataclasses.fields(cls)]


def copy(cls: type[_T], struct: Any) -> _T:
    """The class's copy of a C struct."""
    fields = _fields(cls)  # type: ignore[arg-type]
    return cls(**{name: _value(name, kind, getattr(struct, name)) for name, kind in fields})
