"""Models, sessions and plans over several devices: bits, text and bytes are those of the C interface and the tool."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import GLOSSARY, PROMPT, ROOT, tool

import tsr


def logits_of(split):
    devices = f"host:{len(split)},threads=1"
    with tsr.Model(GLOSSARY, split, devices=devices) as model, tsr.Session(model) as session:
        tokens = model.tokenizer.encode(PROMPT)
        every = session.decode(tokens, outputs=np.ones(len(tokens), bool))
        return np.concatenate([every, session.decode([int(every[-1].argmax())])])


def test_every_split_gives_the_same_bits():
    whole = logits_of([1])
    assert whole.dtype == np.float32 and whole.shape[1] == 4096 and np.isfinite(whole).all()
    for split in ([3, 1], [1, 2, 5]):
        assert logits_of(split).tobytes() == whole.tobytes()


def test_embeddings():
    """Of every split, in place of logits."""
    rows = []
    for split in ([1], [3, 1]):
        devices = f"host:{len(split)},threads=1"
        with tsr.Model(GLOSSARY, split, devices=devices, embeddings=True) as model, tsr.Session(model) as session:
            tokens = model.tokenizer.encode(PROMPT)
            rows.append(session.decode_embeddings(tokens, outputs=np.ones(len(tokens), bool)))
            assert rows[-1].shape == (len(tokens), model.info.n_embd) and np.isfinite(rows[-1]).all()
            session.trim(0)
            last = np.empty((1, model.info.n_embd), np.float32)
            assert session.decode_embeddings(tokens, out=last) is last
            assert last.tobytes() == rows[-1][-1].tobytes()
            with pytest.raises(tsr.InvalidError, match="opened for embeddings"):
                session.decode([1])
    assert rows[0].tobytes() == rows[1].tobytes()


def test_text_is_that_of_the_tool(session):
    command = ["run", "-m", str(GLOSSARY), "--devices", "host:1", "-p", PROMPT, "-n", "40"]
    text = tool(*command, "--temp", "0")
    assert PROMPT + "".join(session.generate(PROMPT, 40)) + "\n" == text

    session.trim(0)
    with tsr.Sampler(4096, temperature=0.9, repeat_penalty=1.2, repeat_last_n=64, seed=3) as sampler:
        drawn = "".join(session.generate(PROMPT, 40, sampler=sampler))
    drawing = ["--temp", "0.9", "--repeat-penalty", "1.2", "--repeat-last-n", "64", "-s", "3"]
    assert PROMPT + drawn + "\n" == tool(*command, *drawing) != text


def test_planned_bytes_are_allocated_bytes():
    devices, options = "host:3,threads=1", {"n_ctx": 128, "type_k": "q8_0"}
    planned = tsr.plan(GLOSSARY, [5, 2, 1], devices=devices, **options)
    with tsr.Model(GLOSSARY, [5, 2, 1], devices=devices, **options) as model, tsr.Session(model):
        assert [d.used for d in model.runtime.devices] == [d.bytes for d in planned.devices]
        assert [d.bytes for d in model.plan.devices] == [d.bytes for d in planned.devices]
    assert planned.info.n_ctx == 128 and planned.info.type_k == "Q8_0" and planned.devices[0].bytes["weights"] > 0
    assert "Split mode tensor: 6 layers over 3 of 3 devices" in str(planned)


def test_prompts_of_all_lengths_and_sequences():
    """The arrays of a batch live until the call returns: those of long prompts would be memory of others."""
    with tsr.Model(GLOSSARY, devices="host:1,threads=1", n_seq_max=2) as model, tsr.Session(model) as session:
        for n in (1, 60, 200):
            tokens = np.arange(n, dtype=np.int32)
            text = "".join(session.generate(tokens, 8, seq=1))
            assert session.length(0) == 0 and session.length(1) >= n
            session.trim(0, seq=1)
            assert text == "".join(session.generate(list(tokens), 8))
            session.trim(0)
        with pytest.raises(tsr.FullError):
            next(session.generate(np.zeros(1 << 24, np.int32), 3))  # memory that is unmapped when it is freed
        assert session.length() == 0


def test_a_change_of_split_changes_no_text(model, session):
    whole = "".join(session.generate(PROMPT, 24))
    session.trim(0)
    text = ""
    for i, piece in enumerate(session.generate(PROMPT, 24)):
        text += piece
        model.resplit([[1, 1], [0, 1], None][i % 3])
    assert text == whole
    assert model.adapt() in (True, False)
    model.resplit([1, 0])
    assert [d.used["weights"] > 0 for d in model.runtime.devices] == [True, False]


def test_a_device_is_dropped_and_the_text_goes_on():
    with tsr.Runtime("host:2,threads=1") as runtime:
        with tsr.Session(tsr.Model(GLOSSARY, [1, 1], runtime=runtime)) as session:
            whole = session.decode([1, 2, 3]).tobytes()
            session.trim(2)
            runtime.drop_device(1)
            assert [d.dropped for d in runtime.devices] == [False, True]
            assert session.decode([3]).tobytes() == whole
            with pytest.raises(tsr.Error, match="no device remains"):
                runtime.drop_device(0)


def test_logits_are_written_to_the_callers_array(model, session):
    tokens = model.tokenizer.encode(PROMPT)
    out = np.zeros((1, 4096), np.float32)
    assert session.decode(tokens, out=out) is out and out.any()
    candidates = None
    session.trim(0)
    candidates = session.decode_candidates(tokens, 3)
    order = np.argsort(-out[0], kind="stable")[:3]
    assert candidates["id"][0].tolist() == order.tolist()
    assert candidates["logit"][0].tobytes() == out[0][order].tobytes()
    for wrong in (
        np.zeros((1, 4096)),
        np.zeros((2, 4096), np.float32),
        np.zeros((1, 8192), np.float32)[:, ::2],
    ):
        with pytest.raises(tsr.InvalidError, match=r"contiguous float32 array of shape \(1, 4096\)"):
            session.decode([1], out=wrong)


def test_sequences_are_independent():
    with (
        tsr.Model(GLOSSARY, devices="host:2,threads=1", n_seq_max=3, n_batch=8) as model,
        tsr.Session(model) as session,
    ):
        a, b = [0, 5, 9], [0, 7]
        both = session.decode(a + b, seqs=[0, 0, 0, 1, 1], outputs=[False, False, True, False, True])
        session.fork(1, 2)
        assert [session.length(i) for i in range(3)] == [3, 2, 2]
        forked = session.decode([3], seqs=[2])
        with tsr.Session(model) as alone:
            assert alone.decode(a).tobytes() == both[:1].tobytes()
            alone.trim(0)
            assert alone.decode(b + [3]).tobytes() == forked.tobytes()


def test_a_saved_sequence_goes_on(model, session, tmp_path):
    tokens = model.tokenizer.encode(PROMPT)
    session.decode(tokens)
    session.save(tmp_path / "pages")
    expected = session.decode([5])
    with tsr.Session(model) as other:
        other.load(tmp_path / "pages")
        assert other.length() == len(tokens) and other.decode([5]).tobytes() == expected.tobytes()


def test_tokens_become_their_text(model):
    tokenizer = model.tokenizer
    for text in ("", PROMPT, "wörter 🙂 <|endoftext|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    stream = tsr.Detokenizer(tokenizer)
    tokens = tokenizer.encode("🙂", add_special=False)
    assert "".join(stream.push(int(t)) for t in tokens) + stream.finish() == "🙂"
    assert tokenizer.n_vocab == 4096 and tokenizer.is_eog(tokenizer.eos)
    assert tokenizer.find("no such token") is None


def test_conversations_have_the_librarys_templates(model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a pin?"}]
    tokens = model.encode_chat(messages, template="chatml")
    text = model.tokenizer.decode(tokens)
    assert "<|im_start|>user\nWhat is a pin?<|im_end|>\n<|im_start|>assistant\n" in text
    first = model.encode_chat(messages[:1], template="chatml", add_generation_prompt=False)
    assert len(model.encode_chat(messages, n_done=1, template="chatml")) < len(tokens) > len(first)
    with pytest.raises(tsr.NotFoundError, match="no chat template"):
        model.encode_chat(messages)
    with pytest.raises(tsr.InvalidError, match='role "poet"'):
        model.encode_chat([{"role": "poet", "content": ""}], template="chatml")


def test_a_fit_is_what_the_model_opens_with():
    options = {"margins": [1 << 20], "type_k": "q8_0", "type_v": "q8_0"}
    narrow = "host:1,threads=1,mem=11200KiB"  # the plan without a cut takes 10.2 MiB
    fit = tsr.fit(GLOSSARY, devices=narrow, fit=options)
    assert (fit.wanted.type_k, fit.chosen.type_k, fit.steps[0].cut) == ("F16", "Q8_0", "kv_type")
    with tsr.Model(GLOSSARY, devices=narrow, **fit.config) as model, tsr.Session(model):
        assert model.plan.devices[0].bytes == fit.plan.devices[0].bytes == model.runtime.devices[0].used
        assert model.fit is None
    with tsr.Model(GLOSSARY, devices=narrow, fit=options) as model:
        assert model.fit.chosen == fit.chosen


def test_other_machines_are_planned():
    plan = tsr.plan(GLOSSARY, machine="2x rtx3090 nvlink", split_mode="auto")
    assert [d.name for d in plan.devices] == ["cuda0", "cuda1"]
    with tsr.Topology.parse("2x rtx3090 nvlink") as machine:
        assert [gpu.name for gpu in machine.gpus] == ["NVIDIA GeForce RTX 3090"] * 2
        assert tsr.plan(GLOSSARY, machine=machine, split_mode="auto") == plan
    with tsr.Topology.load("synthetic:pack:2 core:4 pu:2") as machine:
        assert len(machine.packages) == 2 and len(machine.cores) == 8 and "package" in str(machine)
    assert len(tsr.Topology().cores) > 0


def test_the_example_shows_the_same_text():
    done = subprocess.run([sys.executable, ROOT / "python/examples/splits.py"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("The same text every time.\n"), done.stderr
    missing = subprocess.run([sys.executable, ROOT / "python/examples/splits.py", "nowhere.gguf"], capture_output=True)
    assert missing.returncode == 1 and missing.stderr.startswith(b"ERR_IO: cannot open 'nowhere.gguf'")


def test_a_decode_is_cancelled_and_goes_on_afterwards():
    with tsr.Model(GLOSSARY, [3, 1], devices="host:2,threads=1", n_batch=16) as model, tsr.Session(model) as session:
        tokens = np.arange(80, dtype=np.int32)
        expected = session.decode(tokens)
        session.trim(0)

        def told(n_done, n_tokens):
            seen.append((n_done, n_tokens))
            if n_done == 32:
                reaction()

        def fail():
            raise ValueError("enough")

        def other_thread():
            thread = threading.Thread(target=session.cancel)
            thread.start()
            thread.join()

        session.progress = told
        for reaction, error in ((other_thread, tsr.CancelledError), (fail, ValueError)):
            seen = []
            with pytest.raises(error):
                session.decode(tokens)
            assert seen == [(16, 80), (32, 80)] and session.length() == 0 and not session.withdraw_cancel()
        session.progress = None
        session.cancel()
        with pytest.raises(tsr.CancelledError, match="cancelled"):
            next(session.generate(tokens, 1))
        session.cancel()
        assert session.withdraw_cancel()
        assert session.decode(tokens).tobytes() == expected.tobytes()
    with pytest.raises(tsr.ClosedError):
        session.cancel()
