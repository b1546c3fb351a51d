"""A graph of one's own over split tensors: an FFN, whose bits do not depend on the split."""

import threading

import numpy as np
import pytest

import tsr

N_EMBD, N_FF, N_TOKENS = 64, 256, 3
rng = np.random.default_rng(1)
GATE, UP = (rng.uniform(-0.5, 0.5, (N_FF, N_EMBD)).astype(np.float32) for _ in range(2))
DOWN = rng.uniform(-0.5, 0.5, (N_EMBD, N_FF)).astype(np.float32)
X = rng.uniform(-0.5, 0.5, (N_TOKENS, N_EMBD)).astype(np.float32)


@pytest.fixture
def runtime():
    with tsr.Runtime("host:2,threads=1") as rt:
        yield rt


def ffn(runtime, split, type):
    """y and the objects that it came from."""
    rows = tsr.Weights(runtime, {"gate": GATE, "up": UP}, split, type=type, granule=32)
    columns = tsr.Weights(runtime, {"down": DOWN}, split, type=type, axis=0, granule=32)
    graph = tsr.Graph(runtime)
    x = graph.input("x", X.shape)
    gate, up = graph.mul_mat(rows["gate"], x), graph.mul_mat(rows["up"], x)
    y = graph.output(graph.mul_mat(columns["down"], graph.swiglu(gate, up)))
    program = graph.compile()
    x.set(X)
    program.run()
    return y.get(), (rows, columns, graph, program, x, y)


@pytest.mark.parametrize("type", ["f32", "q8_0"])
def test_an_ffn_has_the_same_bits_for_every_split(runtime, type):
    whole, (rows, _, _, program, _, _) = ffn(runtime, [1, 0], type)
    g, u, d = (w if type == "f32" else tsr.Weights(runtime, {"w": w}, type=type)["w"].get() for w in (GATE, UP, DOWN))
    gate = X @ g.T.astype(np.float64)
    expected = gate / (1 + np.exp(-gate)) * (X @ u.T.astype(np.float64)) @ d.T
    assert np.allclose(whole, expected, rtol=1e-4, atol=1e-4) and np.abs(expected).max() > 1
    for split in ([3, 1], [0, 1], [2, 7]):
        y, (rows, _, _, program, _, _) = ffn(runtime, split, type)
        assert y.tobytes() == whole.tobytes()
        assert (rows["gate"].device_bytes(0) > 0) == (split[0] > 0) and program.info.n_all_reduces == 1


def test_tensors_go_with_their_weights(runtime):
    _, (rows, columns, graph, program, x, y) = ffn(runtime, [1, 1], "f32")
    assert rows["up"].get().tobytes() == UP.tobytes() and rows["up"].shape == UP.shape
    assert (rows["up"].type, rows["up"].sharding) == ("F32", "split")
    second = graph.compile()
    program.close()
    second.run()
    second.close()
    for call in (program.run, y.get, lambda: x.set(X)):
        with pytest.raises(tsr.ClosedError):
            call()
    third = graph.compile()
    columns.close()
    assert third.closed and graph.closed and not rows.closed
    for call in (third.run, y.get, lambda: graph.output(y), lambda: columns["down"].get()):
        with pytest.raises(tsr.ClosedError):
            call()
    with pytest.raises(tsr.ClosedError, match="weights or graph were closed"):
        tsr.Graph(runtime).mul_mat(columns["down"], tsr.Graph(runtime).input("x", X.shape))


def test_a_run_is_cancelled_and_the_next_one_is_good(runtime):
    whole, (_, _, _, program, _, y) = ffn(runtime, [3, 1], "f32")
    thread = threading.Thread(target=program.cancel)
    thread.start()
    thread.join()
    with pytest.raises(tsr.CancelledError, match="tsr_program_cancel"):
        program.run()
    assert not program.withdraw_cancel()
    program.cancel()
    assert program.withdraw_cancel()
    program.run()
    assert y.get().tobytes() == whole.tobytes()
    program.close()
    for call in (program.cancel, program.withdraw_cancel):
        with pytest.raises(tsr.ClosedError):
            call()


def test_heads_of_activations_are_joined(runtime):
    weights = tsr.Weights(runtime, {"gate": GATE, "up": UP}, [1, 2], granule=32)
    graph = tsr.Graph(runtime)
    x = graph.input("x", X.shape)
    gate, up = (graph.output(graph.mul_mat(weights[name], x)) for name in ("gate", "up"))
    heads, rows = (graph.output(graph.concat([gate, up], *n_heads)) for n_heads in ([N_FF // 32], []))
    program = graph.compile()
    x.set(X)
    program.run()
    assert heads.sharding == "split" and rows.sharding == "replicated"
    both = gate.get(), up.get()
    assert rows.get().tobytes() == np.concatenate(both, 1).tobytes()
    by_head = [part.reshape(N_TOKENS, -1, 32) for part in both]
    assert heads.get().tobytes() == np.concatenate(by_head, 2).tobytes()
    with pytest.raises(tsr.InvalidError, match="2 to 8"):
        graph.concat([x])


def test_failures_of_graphs(runtime):
    weights = tsr.Weights(runtime, {"w": GATE, "norm": GATE[0]}, replicated=True)
    graph = tsr.Graph(runtime)
    x = graph.input("x", (N_TOKENS, N_EMBD))
    assert graph.output(graph.rms_norm(x, weights["norm"], 1e-6)).shape == X.shape
    with pytest.raises(tsr.InvalidError, match="mul_mat"):
        graph.mul_mat(weights["w"], graph.input("ids", (N_TOKENS, N_FF)))
    with pytest.raises(tsr.InvalidError, match="shape"):
        weights["w"].set(DOWN)
    with pytest.raises(tsr.InvalidError, match="another graph or runtime"):
        tsr.Graph(runtime).gelu(x)
    with pytest.raises(tsr.InvalidError, match="w"):
        tsr.Weights(runtime, {"w": GATE[:, :33]}, type="q8_0")
