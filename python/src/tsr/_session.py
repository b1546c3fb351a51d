"""Sessions: sequences of tokens, and decoding (tsr/session.h)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from ._arrays import float_rows, int32_array
from ._errors import Error, InvalidError
from ._handle import Alive, Object
from ._library import check, ffi, lib, path_bytes
from ._model import Model
from ._sampler import CANDIDATE, Sampler
from ._tokenizer import Detokenizer
from ._values import SessionStats, copy

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Batch:
    """A tsr_batch with the arrays that it points to."""

    def __init__(self, tokens: Iterable[int], seqs: Iterable[int] | None, outputs: Iterable[bool] | None) -> None:
        self.tokens = int32_array("tokens", tokens)
        n = len(self.tokens)
        self.pointer = ffi.new("tsr_batch *")
        self.pointer.n_tokens = n
        self.pointer.tokens = ffi.from_buffer("int32_t[]", self.tokens)
        self.n_outputs = 1 if n else 0
        if seqs is not None:
            self.seqs = int32_array("seqs", seqs)
            _check_length("seqs", self.seqs, n)
            self.pointer.seqs = ffi.from_buffer("int32_t[]", self.seqs)
        if outputs is not None:
            if not isinstance(outputs, np.ndarray):
                outputs = np.array(list(outputs), bool)
            self.outputs = np.ascontiguousarray(outputs, bool)
            _check_length("outputs", self.outputs, n)
            self.pointer.outputs = ffi.from_buffer("bool[]", self.outputs)
            self.n_outputs = int(np.count_nonzero(self.outputs))


def _check_length(name: str, values: NDArray[Any], n: int) -> None:
    if values.shape != (n,):
        raise InvalidError(f"{name}: an array of shape {values.shape} for {n} tokens; give one entry for each")


class Session(Object):
    """Sequences of a model, numbered from 0, with the KV region that holds them.

    progress: called as progress(n_done, n_tokens) between the chunks of a decode; None: nothing is called. What it
    raises cancels the decode, which then raises that.
    """

    progress: Callable[[int, int], object] | None = None

    def __init__(self, model: Model) -> None:
        out = ffi.new("tsr_session **")
        self._model = model
        self._n_vocab = model.info.n_vocab
        with model._handle as pointer:
            check(lib.tsr_session_create(pointer, out))
            self._alive = Alive("Session", out[0], lib.tsr_session_destroy)
            self._own(out[0], self._alive.destroy, model._handle)

    @property
    def model(self) -> Model:
        """The model of the session."""
        return self._model

    @contextmanager
    def _decoding(self) -> Iterator[Any]:
        """The pointer of the session for a decode with self.progress."""
        progress = self.progress
        raised: list[BaseException] = []
        with self._handle as session:
            if progress is None:
                yield session
                return

            def tell(n_done: int, n_tokens: int, _user: Any) -> None:
                try:
                    progress(n_done, n_tokens)
                except BaseException as error:
                    raised.append(error)
                    lib.tsr_session_cancel(session)

            callback = ffi.callback("tsr_session_progress_fn", tell)
            lib.tsr_session_set_progress(session, callback, ffi.NULL)
            try:
                yield session
            except Error:
                if not raised:
                    raise
                lib.tsr_session_withdraw_cancel(session)
                raise raised[0] from None
            finally:
                lib.tsr_session_set_progress(session, ffi.NULL, ffi.NULL)

    def decode(
        self,
        tokens: Iterable[int],
        *,
        seqs: Iterable[int] | None = None,
        outputs: Iterable[bool] | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Append tokens and compute: logits[n_outputs, n_vocab], in `out` if that is given (float32, of this shape).

        seqs: the sequence of each token; None: all 0. outputs: True for each token whose logits are wanted; None: the
        last token only. On failure every sequence is as it was.
        """
        batch = _Batch(tokens, seqs, outputs)
        logits = float_rows("out", out, (batch.n_outputs, self._n_vocab))
        with self._decoding() as session:
            check(lib.tsr_session_decode(session, batch.pointer, ffi.from_buffer("float[]", logits)))
        return logits

    def decode_candidates(
        self,
        tokens: Iterable[int],
        n: int,
        *,
        seqs: Iterable[int] | None = None,
        outputs: Iterable[bool] | None = None,
    ) -> NDArray[Any]:
        """decode() with the n likeliest tokens of each output: an array [n_outputs, n] with the fields "logit" and
        "id", the largest logit first."""
        batch = _Batch(tokens, seqs, outputs)
        candidates = np.empty((batch.n_outputs, max(n, 0)), CANDIDATE)
        with self._decoding() as session:
            pointer = ffi.from_buffer("tsr_candidate[]", candidates)
            check(lib.tsr_session_decode_candidates(session, batch.pointer, n, pointer))
        return candidates

    def decode_embeddings(
        self,
        tokens: Iterable[int],
        *,
        seqs: Iterable[int] | None = None,
        outputs: Iterable[bool] | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """decode() with embeddings[n_outputs, n_embd] instead of logits: hidden states behind the last norm, not
        normalized. The model was opened with embeddings=True."""
        batch = _Batch(tokens, seqs, outputs)
        embeddings = float_rows("out", out, (batch.n_outputs, self._model.info.n_embd))
        with self._decoding() as session:
            pointer = ffi.from_buffer("float[]", embeddings)
            check(lib.tsr_session_decode_embeddings(session, batch.pointer, pointer))
        return embeddings

    def decode_hidden(
        self,
        tokens: Iterable[int],
        *,
        seqs: Iterable[int] | None = None,
        outputs: Iterable[bool] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """decode(), and hidden[n_tokens, n_embd] for predict(). The model was opened with prediction=True."""
        batch = _Batch(tokens, seqs, outputs)
        logits = np.empty((batch.n_outputs, self._n_vocab), np.float32)
        hidden = np.empty((len(batch.tokens), self._model.info.n_embd), np.float32)
        with self._decoding() as session:
            rows = ffi.from_buffer("float[]", logits), ffi.from_buffer("float[]", hidden)
            check(lib.tsr_session_decode_hidden(session, batch.pointer, *rows))
        return logits, hidden

    def cancel(self) -> None:
        """End the decode that runs, or, if none runs, the next one: it raises CancelledError, and sequences are as before
        it. For other threads; does not wait."""
        with self._alive as session:
            lib.tsr_session_cancel(session)

    def withdraw_cancel(self) -> bool:
        """Withdraw a cancel() that no decode has taken. Returns whether there was one."""
        with self._alive as session:
            return bool(lib.tsr_session_withdraw_cancel(session))

    def predict(
        self, tokens: Iterable[int], hidden: NDArray[np.float32], *, position: int = 0, seq: int = 0
    ) -> NDArray[np.float32]:
        """logits[n_vocab] of the token after the last of tokens[n], by the model's prediction layer. hidden[n, n_embd]
        are those of the tokens before each, the first at `position`."""
        ids = int32_array("tokens", tokens)
        hidden = np.ascontiguousarray(hidden, np.float32)
        if hidden.shape != (len(ids), self._model.info.n_embd):
            raise InvalidError(f"hidden: shape {hidden.shape}; give {(len(ids), self._model.info.n_embd)}")
        logits = np.empty(self._n_vocab, np.float32)
        prediction = ffi.new("tsr_prediction *")
        prediction.seq, prediction.position, prediction.n_tokens = seq, position, len(ids)
        prediction.tokens = ffi.from_buffer("int32_t[]", ids)
        prediction.hidden = ffi.from_buffer("float[]", hidden)
        with self._handle as session:
            check(lib.tsr_session_predict(session, prediction, ffi.from_buffer("float[]", logits)))
        return logits

    def generate(
        self, prompt: str | Iterable[int], n_predict: int, *, sampler: Sampler | None = None, seq: int = 0
    ) -> Iterator[str]:
        """Append a prompt (text, or tokens) to a sequence, and yield its continuation piece by piece: until the model
        ends it, or for n_predict tokens. sampler None: always the likeliest token. Afterwards the sequence holds the
        prompt and the tokens of the text that was yielded."""
        tokenizer = self._model.tokenizer
        tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else int32_array("prompt", prompt)
        own = sampler is None
        sampler = sampler or Sampler(self._n_vocab, temperature=0)
        try:
            with Detokenizer(tokenizer) as stream:
                step = _Step(self, sampler, seq)
                step.decode(tokens)
                for token in tokens:
                    sampler.accept(int(token))
                for _ in range(n_predict):
                    token = step.sample()
                    text = stream._push_unless_eog(token)
                    if text is None:
                        break
                    step.decode_one(token)
                    if text:
                        yield text
                if rest := stream.finish():
                    yield rest
        finally:
            if own:
                sampler.close()

    def length(self, seq: int = 0) -> int:
        """Tokens in a sequence; 0 if it is empty or does not exist."""
        with self._handle as session:
            return int(lib.tsr_session_length(session, seq))

    def min_length(self, seq: int = 0) -> int:
        """The shortest length, except 0, that a sequence can be cut to; 0: any length."""
        with self._handle as session:
            return int(lib.tsr_session_min_length(session, seq))

    def trim(self, length: int, seq: int = 0) -> None:
        """Remove all tokens of a sequence except the first `length`."""
        with self._handle as session:
            check(lib.tsr_session_trim(session, seq, length))

    def fork(self, source: int, to: int) -> None:
        """Make the empty sequence `to` a copy of `source`. The two share memory as long as they are equal."""
        with self._handle as session:
            check(lib.tsr_session_fork(session, source, to))

    def compact(self) -> None:
        """Return unused memory of the KV region to the devices."""
        with self._handle as session:
            check(lib.tsr_session_compact(session))

    def save(self, path: str | os.PathLike[str], seqs: Sequence[int] | None = None) -> None:
        """Save sequences to a file; None: all that are not empty. The caller keeps the tokens."""
        with self._handle as session:
            check(
                lib.tsr_session_save(
                    session, ffi.NULL if seqs is None else list(seqs), len(seqs or ()), path_bytes(path)
                )
            )

    def load(self, path: str | os.PathLike[str], seqs: Sequence[int] | None = None) -> None:
        """Load all sequences of a file into empty sequences; None: each gets the number that it had."""
        with self._handle as session:
            check(
                lib.tsr_session_load(
                    session, ffi.NULL if seqs is None else list(seqs), len(seqs or ()), path_bytes(path)
                )
            )

    @property
    def stats(self) -> SessionStats:
        """Counters of the session."""
        stats = ffi.new("tsr_session_stats *")
        with self._handle as session:
            lib.tsr_session_get_stats(session, stats)
        return copy(SessionStats, stats)


class _Step:
    """One sequence token by token, with what a sampler needs of each: the likeliest tokens, or all logits."""

    def __init__(self, session: Session, sampler: Sampler, seq: int) -> None:
        self._session, self._sampler = session, sampler
        self._n_vocab = session._n_vocab
        self._n = sampler.n_candidates(self._n_vocab)
        self._seq = seq
        self._rows = ffi.new("tsr_candidate[]", self._n) if self._n else ffi.new("float[]", self._n_vocab)
        self._token, self._seqs = ffi.new("int32_t *"), ffi.new("int32_t *", seq)
        self._batch = ffi.new("tsr_batch *", {"n_tokens": 1, "tokens": self._token, "seqs": self._seqs})

    def _decode(self, batch: Any) -> None:
        with self._session._handle as session:
            if self._n:
                check(lib.tsr_session_decode_candidates(session, batch, self._n, self._rows))
            else:
                check(lib.tsr_session_decode(session, batch, self._rows))

    def decode(self, tokens: NDArray[np.int32]) -> None:
        batch = _Batch(tokens, np.full(len(tokens), self._seq, np.int32), None)  # its arrays live as long
        self._decode(batch.pointer)

    def decode_one(self, token: int) -> None:
        self._token[0] = token
        self._decode(self._batch)

    def sample(self) -> int:
        with self._sampler._handle as sampler:
            if self._n:
                check(lib.tsr_sampler_choose(sampler, self._rows, self._n, self._token))
            else:
                check(lib.tsr_sampler_sample(sampler, self._rows, self._n_vocab, self._token))
        return int(self._token[0])
