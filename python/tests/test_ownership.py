"""Failures are exceptions with the library's sentence, closed objects raise, and threads cannot break objects."""

import gc
import sys
import threading
import time

import numpy as np
import pytest
from conftest import GLOSSARY, PROMPT

import tsr


def test_failures_carry_the_librarys_sentence(tmp_path):
    with pytest.raises(OSError, match=r"cannot open '.*nowhere\.gguf': No such file or directory") as failure:
        tsr.Model(tmp_path / "nowhere.gguf")
    assert isinstance(failure.value, tsr.InputOutputError) and failure.value.status == "ERR_IO"
    with pytest.raises(tsr.InvalidError, match="tensor_split entry 3 has no device: there are 2"):
        tsr.Model(GLOSSARY, [1, 2, 3], devices="host:2,threads=1")
    with pytest.raises(tsr.OutOfMemoryError, match="host0"):
        tsr.Model(GLOSSARY, devices="host:1,mem=1MiB")
    with pytest.raises(tsr.InvalidError, match="split_mode 'rows': expected one of none, layer, tensor, auto"):
        tsr.plan(GLOSSARY, split_mode="rows")
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(tsr.FormatError, match="text.gguf"):
        tsr.plan(tmp_path / "text.gguf")


def test_a_failed_call_changes_nothing(model, session):
    session.decode([0, 1, 2])
    for tokens, error in (
        ([4096], tsr.InvalidError),
        (range(300), tsr.FullError),
        ([[1]], tsr.InvalidError),
        ([0.5], tsr.InvalidError),
        ([1 << 40], tsr.InvalidError),
    ):
        with pytest.raises(error):
            session.decode(tokens)
    with pytest.raises(tsr.InvalidError, match="seqs"):
        session.decode([1, 2], seqs=[0])
    with pytest.raises(tsr.InvalidError):
        model.resplit([1, 1, 1])
    assert session.length() == 3


def test_closed_objects_raise():
    model = tsr.Model(GLOSSARY, devices="host:2,threads=1")
    session, tokenizer = tsr.Session(model), model.tokenizer
    stream = tsr.Detokenizer(tokenizer)
    runtime = model.runtime
    text = session.generate(PROMPT, 5)
    next(text)
    model.close()
    model.close()
    assert model.closed and session.closed and runtime.closed and not tokenizer.closed
    for call in (
        lambda: session.decode([1]),
        lambda: session.length(),
        lambda: next(text),
        lambda: session.stats,
        lambda: tsr.Session(model),
        lambda: model.resplit([1]),
        lambda: model.plan,
        lambda: runtime.devices,
        lambda: runtime.__enter__(),
        lambda: tsr.Model(GLOSSARY, runtime=runtime),
    ):
        with pytest.raises(tsr.ClosedError, match="used after it was closed"):
            call()
    assert tokenizer.decode(tokenizer.encode(PROMPT)) == PROMPT
    tokenizer.close()
    with pytest.raises(tsr.ClosedError, match="Detokenizer"):
        stream.push(1)


def test_a_runtime_has_several_models():
    with tsr.Runtime("host:2,threads=1") as runtime:
        a, b = (tsr.Model(GLOSSARY, [1, i], runtime=runtime) for i in (1, 3))
        with tsr.Session(a) as x, tsr.Session(b) as y:
            assert x.decode([1, 2]).tobytes() == y.decode([1, 2]).tobytes()
        a.close()
        runtime.resplit([1, 0])
        assert not b.closed and runtime.devices[1].used["weights"] == 0
    assert b.closed


def test_what_python_collects_is_freed():
    with tsr.Runtime("host:1,threads=1") as runtime:
        session = tsr.Session(tsr.Model(GLOSSARY, runtime=runtime))
        session.decode([1])  # the model is kept by its session
        assert runtime.devices[0].used["kv"] > 0
        del session
        gc.collect()
        assert sum(runtime.devices[0].used.values()) == 0
        objects = tsr.lib.tsr_runtime_objects(runtime._handle.pointer, tsr.ffi.NULL, 0)
        assert objects == 0


def test_callbacks():
    lines, fractions, refused = [], [], []

    def progress(fraction):
        fractions.append(fraction)
        with pytest.raises(RuntimeError, match="callback") as failure:
            runtime.close()
        refused.append(failure)

    runtime = tsr.Runtime("host:1,threads=1,mem=1000TiB", log=lambda level, text: lines.append((level, text)))
    with runtime, tsr.Model(GLOSSARY, runtime=runtime, progress=progress, copy_weights=True):
        pass
    assert {level for level, _ in lines} == {"warn", "info"} and all(text for _, text in lines)
    assert fractions[-1] == 1 and fractions == sorted(fractions) and len(refused) == len(fractions)


def test_other_threads_run_while_a_thread_computes(session):
    """Calls release Python's lock. Nothing else does here: threads do not take turns by time."""
    batch = tsr.ffi.new("tsr_batch *", {"n_tokens": 200})
    tokens = tsr.ffi.new("int32_t[]", list(range(200)))
    outputs = tsr.ffi.new("bool[200]")
    batch.tokens, batch.outputs = tokens, outputs
    inside, n_seen = [False], 0

    def compute():
        with session._handle as pointer:
            for _ in range(40):
                inside[0] = True
                status = tsr.lib.tsr_session_decode(pointer, batch, tsr.ffi.NULL)
                inside[0] = False
                tsr.check(status)
                tsr.check(tsr.lib.tsr_session_trim(pointer, 0, 0))
                if n_seen:
                    break

    thread = threading.Thread(target=compute)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread.start()
        while thread.is_alive():
            n_seen += inside[0]
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)
    assert n_seen > 0


def test_threads_on_one_session_wait_for_each_other(model):
    texts = []
    sessions = [tsr.Session(model) for _ in range(2)]

    def generate(session):
        texts.append("".join(session.generate(PROMPT, 20)))

    threads = [threading.Thread(target=generate, args=(s,)) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 2 and texts[0] == texts[1] != ""


def test_closing_waits_for_a_call(model):
    session = tsr.Session(model)
    failures = []

    def decode():
        try:
            while True:
                session.decode(np.arange(100), outputs=np.zeros(100, bool))
                session.trim(0)
        except tsr.ClosedError as failure:
            failures.append(failure)

    thread = threading.Thread(target=decode)
    thread.start()
    time.sleep(0.05)
    model.close()
    thread.join()
    assert len(failures) == 1
