"""Models: the weights of a GGUF file on the devices of a runtime (tsr/model.h)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Mapping, Sequence

import numpy as np

from ._config import ModelConfig, model_config
from ._errors import InvalidError
from ._handle import Object
from ._library import check, ffi, lib, path_bytes
from ._plan import Fit, Plan
from ._runtime import Runtime
from ._tokenizer import Tokenizer
from ._values import ModelInfo, copy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._config import Unpack


class Model(Object):
    """A loaded model.

    tensor_split: proportions in device order, as -ts of the tool; None: the planner chooses the fastest.
    devices: the model opens a runtime of its own on these devices, and closes the runtime with itself.
    runtime: instead of devices, an opened runtime, which several models may share.
    config: see ModelConfig.

    Closing a model closes its sessions.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensor_split: Sequence[float] | None = None,
        *,
        devices: str | None = None,
        runtime: Runtime | None = None,
        **config: Unpack[ModelConfig],
    ) -> None:
        if runtime is not None and devices is not None:
            raise InvalidError("devices and runtime: give one of the two; a runtime has its devices")
        c = model_config(tensor_split, config)
        self._owns_runtime = runtime is None
        self._runtime = runtime or Runtime(devices)
        try:
            out = ffi.new("tsr_model **")
            with self._runtime._handle as pointer:
                check(lib.tsr_model_open(pointer, path_bytes(path), c.pointer, out))
                self._own(out[0], lib.tsr_model_close, self._runtime._handle)
        except BaseException:
            if self._owns_runtime:
                self._runtime.close()
            raise
        self._path = os.fspath(path)
        self._tokenizer: Tokenizer | None = None
        self._info: ModelInfo | None = None

    @property
    def runtime(self) -> Runtime:
        """The runtime that the model is loaded on."""
        return self._runtime

    @property
    def info(self) -> ModelInfo:
        """The description of the model."""
        if self._info is None:
            info = ffi.new("tsr_model_info *")
            with self._handle as model:
                lib.tsr_model_get_info(model, info)
            self._info = copy(ModelInfo, info)
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which may be used after the model is closed, and by several threads."""
        if self._tokenizer is None:
            out = ffi.new("tsr_tokenizer **")
            with self._handle as model:
                check(lib.tsr_model_tokenizer(model, out))
                self._tokenizer = Tokenizer._of(out[0])
        return self._tokenizer

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        n_done: int = 0,
        template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> NDArray[np.int32]:
        """The tokens of a conversation, {"role": "user", "content": "..."} each, with roles system, user, assistant.

        n_done: messages that the session already has, up to the end of the last one's text. template: "chatml" or
        another one of the library's; None: the one recognised in the model's file.
        """
        texts = [(message["role"].encode(), message["content"].encode()) for message in messages]
        kept = [(ffi.new("char[]", role), ffi.new("char[]", content)) for role, content in texts]
        array = ffi.new("tsr_chat_message[]", [(*pair, len(text[1])) for pair, text in zip(kept, texts)])
        flags = lib.TSR_CHAT_ADD_GENERATION_PROMPT * add_generation_prompt
        chat, n = ffi.new("tsr_chat **"), ffi.new("size_t *")
        tokenizer = self.tokenizer._handle
        with self._handle as model, tokenizer as pointer:
            if template is None:
                check(lib.tsr_chat_guess(lib.tsr_model_gguf(model), chat))
            else:
                check(lib.tsr_chat_find(template.encode(), chat))
            arguments = chat[0], pointer, array, len(texts), n_done, flags
            check(lib.tsr_chat_encode(*arguments, ffi.NULL, 0, n))
            tokens = np.empty(n[0], np.int32)
            check(lib.tsr_chat_encode(*arguments, ffi.from_buffer("int32_t[]", tokens), len(tokens), n))
        return tokens

    @property
    def plan(self) -> Plan:
        """The plan that was carried out; a new one after a change of split."""
        with self._handle as model:
            return Plan._of(lib.tsr_model_plan(model))

    @property
    def fit(self) -> Fit | None:
        """The fit of the opening. None: the model was opened without `fit`."""
        with self._handle as model:
            fit = lib.tsr_model_fit(model)
            return Fit._of(fit) if fit != ffi.NULL else None

    def resplit(self, tensor_split: Sequence[float] | None = None) -> None:
        """Change the split of the model and its sessions, which keep their tokens and go on with the same bits. None:
        the planner chooses. On failure nothing has changed."""
        split = list(tensor_split or [])
        with self._handle as model:
            check(lib.tsr_model_resplit(model, split, len(split)))

    def adapt(self) -> bool:
        """Let the split follow the speeds that devices really have. To be called after every decode; True: the
        split has changed. Texts keep their bits."""
        changed = ffi.new("bool *")
        with self._handle as model:
            check(lib.tsr_model_adapt(model, changed))
        return bool(changed[0])

    def close(self) -> None:
        """Close the sessions and the model, and its runtime if the model opened one."""
        super().close()
        if self._owns_runtime:
            self._runtime.close()

    def __repr__(self) -> str:
        return f"<tsr.Model {self._path}{' (closed)' if self.closed else ''}>"
