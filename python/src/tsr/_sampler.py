"""Samplers: one token from a row of logits (tsr/sampler.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import InvalidError
from ._handle import Object
from ._library import check, default, ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray

CANDIDATE = np.dtype([("logit", np.float32), ("id", np.int32)])
"""tsr_candidate as an element of an array."""


class Sampler(Object):
    """Chooses tokens. What is left out has llama.cpp's default; temperature 0 takes the likeliest token always."""

    def __init__(
        self,
        n_vocab: int,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        repeat_last_n: int | None = None,
        seed: int = 0,
    ) -> None:
        config = default("tsr_sampler_config")
        config.seed = seed
        options = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "repeat_last_n": repeat_last_n,
        }
        for name, value in options.items():
            if value is not None:
                setattr(config, name, value)
        out = ffi.new("tsr_sampler **")
        check(lib.tsr_sampler_create(config, n_vocab, out))
        self._own(out[0], lib.tsr_sampler_destroy)

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Choose a token from logits[n_vocab] (one row may have a dimension of its own), and remember it."""
        row = np.ascontiguousarray(logits, np.float32)
        if row.size != row.shape[-1]:
            raise InvalidError(f"logits: shape {row.shape}; give one row, such as logits[-1]")
        token = ffi.new("int32_t *")
        with self._handle as sampler:
            check(lib.tsr_sampler_sample(sampler, ffi.from_buffer("float[]", row), row.size, token))
        return int(token[0])

    def choose(self, candidates: NDArray[Any]) -> int:
        """sample() from one row of Session.decode_candidates() of at least n_candidates()."""
        row = np.ascontiguousarray(candidates, CANDIDATE)
        if row.size != row.shape[-1]:
            raise InvalidError(f"candidates: shape {row.shape}; give one row, such as candidates[-1]")
        token = ffi.new("int32_t *")
        with self._handle as sampler:
            check(lib.tsr_sampler_choose(sampler, ffi.from_buffer("tsr_candidate[]", row), row.size, token))
        return int(token[0])

    def n_candidates(self, n_vocab: int, n_forbidden: int = 0) -> int:
        """How many of the likeliest tokens decide as all do; 0: all logits are needed."""
        with self._handle as sampler:
            return int(lib.tsr_sampler_n_candidates(sampler, n_vocab, n_forbidden))

    def accept(self, token: int) -> None:
        """Count a token that was not sampled here, of a prompt for example, for the repeat penalty."""
        with self._handle as sampler:
            lib.tsr_sampler_accept(sampler, token)

    def reset(self) -> None:
        """Back to the state after creation."""
        with self._handle as sampler:
            lib.tsr_sampler_reset(sampler)
