"""Plans and fits: which device holds which part of a model, before anything is loaded (tsr/plan.h, tsr/fit.h)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from ._config import Config, ModelConfig, model_config
from ._library import check, default, enum_names, ffi, lib, path_bytes, printed, text
from ._topology import Topology, open_machine
from ._values import FitChoice, FitStep, PlanDevice, PlanInfo, copy

if TYPE_CHECKING:
    from ._config import Unpack


@dataclass(frozen=True)
class Plan:
    """What every device will hold and do. str() of one is what `tsr plan` prints."""

    info: PlanInfo
    devices: list[PlanDevice]
    notes: list[str]
    decode_ns: float  # predicted time of a step of one token of every sequence; 0: rates are unknown
    prompt_ns: float  # predicted time of a step of a prompt; 0: rates are unknown
    workload_ns: float  # predicted time of the workload (n_prompt, n_new, n_seq); 0: rates are unknown
    text: str
    explanation: str  # what --why of the tool prints

    @classmethod
    def _of(cls, pointer: Any) -> Plan:
        info, device = ffi.new("tsr_plan_info *"), ffi.new("tsr_plan_device *")
        times = ffi.new("tsr_plan_times *")
        lib.tsr_plan_get_info(pointer, info)
        lib.tsr_plan_predict(pointer, times)
        devices = []
        for i in range(info.n_devices):
            check(lib.tsr_plan_get_device(pointer, i, device))
            devices.append(copy(PlanDevice, device))
        return cls(
            info=copy(PlanInfo, info),
            devices=devices,
            notes=list(_notes(pointer)),
            decode_ns=times.decode.total_ns,
            prompt_ns=times.prompt.total_ns,
            workload_ns=times.workload_ns,
            text=printed(lib.tsr_plan_print, pointer),
            explanation=printed(lib.tsr_plan_explain, pointer),
        )

    def __str__(self) -> str:
        return self.text


def _notes(pointer: Any) -> Iterator[str]:
    i = 0
    while (note := lib.tsr_plan_note(pointer, i)) != ffi.NULL:
        yield text(note)
        i += 1


@dataclass(frozen=True)
class Fit:
    """A model that was made to fit. str() of one is what `tsr fit` prints."""

    wanted: FitChoice
    chosen: FitChoice
    steps: list[FitStep]
    plan: Plan
    config: ModelConfig  # options for Model: the choices of the fit
    text: str

    @classmethod
    def _of(cls, pointer: Any) -> Fit:
        info, step = ffi.new("tsr_fit_info *"), ffi.new("tsr_fit_step *")
        lib.tsr_fit_get_info(pointer, info)
        steps: list[FitStep] = []
        while lib.tsr_fit_step_at(pointer, len(steps), step):
            steps.append(copy(FitStep, step))
        return cls(
            wanted=copy(FitChoice, info.wanted),
            chosen=copy(FitChoice, info.chosen),
            steps=steps,
            plan=Plan._of(lib.tsr_fit_plan(pointer)),
            config=_result(pointer),
            text=printed(lib.tsr_fit_print, pointer),
        )

    def __str__(self) -> str:
        return self.text


def _result(pointer: Any) -> ModelConfig:
    config = default("tsr_model_config")
    lib.tsr_fit_result(pointer, config)
    types = enum_names("tsr_type")
    result: ModelConfig = {
        "n_ctx": config.session.n_ctx,
        "type_k": types[config.session.type_k],
        "type_v": types[config.session.type_v],
        "n_gpu_layers": config.offload.n_gpu_layers,
        "n_cpu_moe": config.offload.n_cpu_moe,
    }
    if config.margin.bytes != ffi.NULL:
        result["margin"] = [config.margin.bytes[i] for i in range(config.margin.n)]
    return result


@contextlib.contextmanager
def _inputs(path: str | os.PathLike[str], devices: str | None, machine: Topology | str | None) -> Iterator[Any]:
    """The header of a file, and the devices of a machine."""
    file, list_ = ffi.new("tsr_gguf **"), ffi.new("tsr_device_list **")
    gguf_config = default("tsr_gguf_config")
    gguf_config.header_only = True
    spec = Config("tsr_runtime_config").text(devices) if devices is not None else ffi.NULL
    try:
        topology = open_machine(machine)
        with topology._handle as pointer:
            check(lib.tsr_device_list_create(pointer, spec, ffi.NULL, list_))
        if topology is not machine:
            topology.close()
        check(lib.tsr_gguf_open(path_bytes(path), gguf_config, file))
        yield file[0], list_[0]
    finally:
        lib.tsr_gguf_close(file[0])
        lib.tsr_device_list_destroy(list_[0])


def plan(
    path: str | os.PathLike[str],
    tensor_split: Sequence[float] | None = None,
    *,
    devices: str | None = None,
    machine: Topology | str | None = None,
    uncapped: bool = False,
    **config: Unpack[ModelConfig],
) -> Plan:
    """Plan a model; allocates nothing on any device. Only the header of the file is needed.

    devices: as --devices of the tool; None: all GPUs, otherwise host. machine: another machine, a Topology or words
    ("2x rtx3090 nvlink"). uncapped: as if no device had a limit; PlanDevice.missing_bytes is then what lacks. Other
    arguments as those of Model.
    """
    c = model_config(tensor_split, config)
    out = ffi.new("tsr_plan **")
    create = lib.tsr_plan_create_uncapped if uncapped else lib.tsr_plan_create
    with _inputs(path, devices, machine) as (file, list_):
        check(create(file, list_, c.pointer, out))
        try:
            return Plan._of(out[0])
        finally:
            lib.tsr_plan_destroy(out[0])


def fit(
    path: str | os.PathLike[str],
    tensor_split: Sequence[float] | None = None,
    *,
    devices: str | None = None,
    machine: Topology | str | None = None,
    **config: Unpack[ModelConfig],
) -> Fit:
    """Cut what the options leave open until the model fits; allocates nothing on any device. Arguments as plan(); the
    option `fit` says how far to cut. Model(path, tensor_split, **fit.config) then opens the result."""
    config.setdefault("fit", True)
    c = model_config(tensor_split, config)
    out = ffi.new("tsr_fit **")
    with _inputs(path, devices, machine) as (file, list_):
        check(lib.tsr_fit_create(file, list_, c.pointer, out))
        try:
            return Fit._of(out[0])
        finally:
            lib.tsr_fit_destroy(out[0])
