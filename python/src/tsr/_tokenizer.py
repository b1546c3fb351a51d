"""Tokenizers: text to tokens and back (tsr/tokenizer.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

import numpy as np

from ._arrays import int32_array
from ._errors import FullError
from ._handle import Object
from ._library import check, ffi, lib

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Tokenizer(Object):
    """A model's vocabulary. Made by Model.tokenizer."""

    @classmethod
    def _of(cls, pointer: Any) -> Tokenizer:
        self = cls.__new__(cls)
        self._own(pointer, lib.tsr_tokenizer_destroy)
        return self

    def encode(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> NDArray[np.int32]:
        """The tokens of a text. add_special: BOS and EOS where the model's file says so. parse_special: the text of a
        control token becomes that token; not for text from users."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        flags = lib.TSR_ENCODE_ADD_SPECIAL * add_special | lib.TSR_ENCODE_PARSE_SPECIAL * parse_special
        n = ffi.new("size_t *")
        with self._handle as tokenizer:

            def into(pointer: Any, capacity: int) -> int:
                check(lib.tsr_tokenizer_encode(tokenizer, data, len(data), flags, pointer, capacity, n))
                return int(n[0])

            tokens = np.empty(len(data) + 2, np.int32)
            try:
                into(ffi.from_buffer("int32_t[]", tokens), len(tokens))
            except FullError:  # vocabularies that normalize may give more tokens than bytes
                tokens = np.empty(into(ffi.NULL, 0), np.int32)
                into(ffi.from_buffer("int32_t[]", tokens), len(tokens))
        return tokens[: n[0]].copy()

    def decode_bytes(self, tokens: Iterable[int], *, show_special: bool = False) -> bytes:
        """The bytes of tokens; they may end within a character."""
        ids = int32_array("tokens", tokens)
        flags = lib.TSR_DECODE_SHOW_SPECIAL * show_special
        n = ffi.new("size_t *")
        with self._handle as tokenizer:
            pointer = ffi.from_buffer("int32_t[]", ids)
            check(lib.tsr_tokenizer_decode(tokenizer, pointer, len(ids), flags, ffi.NULL, 0, n))
            text = ffi.new("char[]", n[0] + 1)
            check(lib.tsr_tokenizer_decode(tokenizer, pointer, len(ids), flags, text, n[0], n))
        return bytes(ffi.buffer(text, n[0]))

    def decode(self, tokens: Iterable[int], *, show_special: bool = False) -> str:
        """The text of tokens. Bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens, show_special=show_special).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """The bytes that one token stands for, perhaps part of a character; b"" for control tokens."""
        with self._handle as tokenizer:
            piece = lib.tsr_tokenizer_piece(tokenizer, token)
            return bytes(ffi.buffer(piece.data, piece.bytes)) if piece.bytes else b""

    def find(self, text: str) -> int | None:
        """The token that the file spells like this; None: no such token."""
        data = text.encode()
        with self._handle as tokenizer:
            return _token(lib.tsr_tokenizer_find(tokenizer, data, len(data)))

    def is_eog(self, token: int) -> bool:
        """Whether generation ends with this token."""
        with self._handle as tokenizer:
            return bool(lib.tsr_tokenizer_is_eog(tokenizer, token))

    def is_control(self, token: int) -> bool:
        """Whether the token controls the model instead of being text."""
        with self._handle as tokenizer:
            return bool(lib.tsr_tokenizer_is_control(tokenizer, token))

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        with self._handle as tokenizer:
            return int(lib.tsr_tokenizer_n_vocab(tokenizer))

    @property
    def bos(self) -> int | None:
        """The token that begins a sequence; None: the model has none."""
        with self._handle as tokenizer:
            return _token(lib.tsr_tokenizer_bos(tokenizer))

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence; None: the model has none."""
        with self._handle as tokenizer:
            return _token(lib.tsr_tokenizer_eos(tokenizer))


def _token(token: int) -> int | None:
    return None if token == -1 else token  # TSR_TOKEN_NONE


class Detokenizer(Object):
    """Text from tokens that arrive one at a time, in whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        out = ffi.new("tsr_detokenizer **")
        self._tokenizer = tokenizer
        with tokenizer._handle as pointer:
            check(lib.tsr_detokenizer_create(pointer, out))
            self._own(out[0], lib.tsr_detokenizer_destroy, tokenizer._handle)

    def push(self, token: int) -> str:
        """Add a token; the text that is complete now."""
        with self._handle as stream:
            return _string(lib.tsr_detokenizer_push(stream, token))

    def _push_unless_eog(self, token: int) -> str | None:
        """push(), or None where generation ends with the token; one lock, one call of Python for each token."""
        with self._handle as stream:
            if lib.tsr_tokenizer_is_eog(self._tokenizer._handle.pointer, token):
                return None
            return _string(lib.tsr_detokenizer_push(stream, token))

    def finish(self) -> str:
        """End the stream: U+FFFD in place of an incomplete character."""
        with self._handle as stream:
            return _string(lib.tsr_detokenizer_finish(stream))


def _string(text: Any) -> str:
    return bytes(ffi.buffer(text.data, text.bytes)).decode() if text.bytes else ""
