"""Options of a model as keyword arguments, and the tsr_model_config that they make (tsr/config.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence, TypedDict

from ._library import default, enum_value, ffi

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack  # the type checker's own, nothing to install


class FitConfig(TypedDict, total=False):
    """How far a fit may cut: tsr_fit_config. What is left out has the library's default."""

    n_ctx_min: int
    type_k: str
    type_v: str
    margins: Sequence[int]
    context_only: bool


class ModelConfig(TypedDict, total=False):
    """How a model is divided and run. What is left out has the library's default (tsr/config.h)."""

    split_mode: str  # "tensor", "layer", "none", "auto"
    expert_split: str  # "columns", "experts", "auto"
    main_device: int
    prompt_split: Sequence[float]
    prompt_split_automatic: bool
    prompt_split_tokens: int
    n_gpu_layers: int
    n_cpu_moe: int
    offload_rules: Sequence[tuple[str, str]]  # (pattern in names of tensors, device)
    offload_device: str
    n_ctx: int
    n_seq_max: int
    n_batch: int
    n_outputs_max: int
    type_k: str  # "f32", "f16", "bf16", "q8_0", "q4_0"
    type_v: str
    swa_full: bool
    n_sessions: int
    reduction: str  # "exact", "f32", "bf16"
    activation_bits: int
    timeout_ns: int
    n_prompt: int  # the workload that the planner minimises
    n_new: int
    n_seq: int
    margin: Sequence[int]
    progress: Callable[[float], None]  # called while the model is loaded, with 0 to 1
    copy_weights: bool
    verify_upload: bool
    prediction: bool
    embeddings: bool  # sessions give embeddings instead of logits
    fit: bool | FitConfig  # True: a fit with the defaults


class Config:
    """A C config with the memory that it points to."""

    def __init__(self, name: str) -> None:
        self.pointer = default(name)
        self._kept: list[Any] = []

    def keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def array(self, kind: str, values: Sequence[Any]) -> Any:
        return self.keep(ffi.new(f"{kind}[]", list(values)))

    def text(self, value: str) -> Any:
        return self.keep(ffi.new("char[]", value.encode()))


# Options that are a field each: where in tsr_model_config, and the enum whose names they take.
_fields: dict[str, tuple[str, str | None]] = {
    "split_mode": ("split.mode", "tsr_split_mode"),
    "expert_split": ("split.experts", "tsr_expert_split"),
    "main_device": ("split.main_device", None),
    "prompt_split_automatic": ("prompt.automatic", None),
    "prompt_split_tokens": ("prompt.n_tokens", None),
    "n_gpu_layers": ("offload.n_gpu_layers", None),
    "n_cpu_moe": ("offload.n_cpu_moe", None),
    "n_ctx": ("session.n_ctx", None),
    "n_seq_max": ("session.n_seq_max", None),
    "n_batch": ("session.n_batch", None),
    "n_outputs_max": ("session.n_outputs_max", None),
    "type_k": ("session.type_k", "tsr_type"),
    "type_v": ("session.type_v", "tsr_type"),
    "swa_full": ("session.swa_full", None),
    "n_sessions": ("session.n_sessions", None),
    "reduction": ("compute.reduction", "tsr_reduction"),
    "activation_bits": ("compute.activation_bits", None),
    "timeout_ns": ("compute.timeout_ns", None),
    "n_prompt": ("workload.n_prompt", None),
    "n_new": ("workload.n_new", None),
    "n_seq": ("workload.n_seq", None),
    "copy_weights": ("load.copy_weights", None),
    "verify_upload": ("load.verify_upload", None),
    "prediction": ("prediction.load", None),
    "embeddings": ("output.embeddings", None),
}


def _set_split(config: Config, group: Any, split: Sequence[float]) -> None:
    group.tensor_split = config.array("float", split)
    group.n_tensor_split = len(split)


def _set_rules(config: Config, offload: Any, rules: Sequence[tuple[str, str]]) -> None:
    texts = [(config.text(pattern), config.text(device)) for pattern, device in rules]
    offload.rules = config.array("tsr_offload_rule", texts)
    offload.n_rules = len(texts)


def _set_progress(config: Config, load: Any, progress: Callable[[float], None]) -> None:
    load.progress = config.keep(ffi.callback("void(double, void *)", lambda fraction, _: progress(fraction)))


def fit_config(config: Config, options: FitConfig) -> Any:
    """The tsr_fit_config of a fit's options; kept by `config`."""
    fit = config.keep(default("tsr_fit_config"))
    given: dict[str, Any] = {**options}
    for name, value in given.items():
        if name not in FitConfig.__annotations__:
            raise TypeError(f"no option {name!r} of a fit; there are {', '.join(FitConfig.__annotations__)}")
        if name == "margins":
            fit.margins, fit.n_margins = config.array("size_t", value), len(value)
        else:
            setattr(fit, name, enum_value("tsr_type", value) if name.startswith("type") else value)
    return fit


def _set(config: Config, name: str, value: Any) -> None:
    c = config.pointer
    if name == "prompt_split":
        _set_split(config, c.prompt, value)
    elif name == "offload_rules":
        _set_rules(config, c.offload, value)
    elif name == "offload_device":
        c.offload.device = config.text(value)
    elif name == "margin":
        c.margin.bytes, c.margin.n = config.array("size_t", value), len(value)
    elif name == "progress":
        _set_progress(config, c.load, value)
    elif name == "fit":
        if value is not False:
            c.plan.fit = fit_config(config, {} if value is True else value)
    elif name in _fields:
        path, enum = _fields[name]
        group, field = path.split(".")
        setattr(getattr(c, group), field, enum_value(enum, value) if enum else value)
    else:
        raise TypeError(f"no option {name!r} of a model; there are {', '.join(ModelConfig.__annotations__)}")


def model_config(tensor_split: Sequence[float] | None, options: ModelConfig) -> Config:
    """The tsr_model_config of a tensor_split and options. An option that is None is left out."""
    config = Config("tsr_model_config")
    if tensor_split is not None:
        _set_split(config, config.pointer.split, tensor_split)
    for name, value in options.items():
        if value is not None:
            _set(config, name, value)
    return config
