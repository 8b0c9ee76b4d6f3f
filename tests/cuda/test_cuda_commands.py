"""Every command with ``--device cuda``, and with several processes on one GPU: a CPU's records up to rounding."""

import math
from importlib.util import find_spec

import pytest

pytest.importorskip("pydantic", reason="records need pydantic")

from sources_helpers import VOCABULARY, save, seeded

from attnprobe.frame.records.read import read_records

COMMANDS = {
    "error": "--method vmean,skyformer,nystromformer,linformer,window,informer,bigbird --d 12",
    "error, half precision": "--method vmean,nystromformer,window --d 12 --dtype bfloat16",
    "error, causal": "--method linear,window --d 12",
    "error, kernels": "--method torch:sdpa-math,torch:int8 --no-matrix",
    "spectrum": "--of softmax,lifted-gaussian,nystromformer --d 8",
    "condition": "--method skyformer,nystromformer --d 8 --sensitivity --iterations 4",
    "theory": "--theorem rank-collapse,eckart-young,skyformer-lemma-3 --d 8 --repeats 2",
    "audit": "--method performer,skeinformer --d 8 --repeats 5 --epsilon 1",
    "budget": "--method nystromformer --epsilon 0.5 --d-min 2 --repeats 2",
    "inject": "--method nystromformer --d 4 --n 12",
    "inject, decode": "--phase decode --method topk,quest,snapkv,h2o,window,random --d 8 --n 40 --prefix 30",
    "inject, a plan": "--phase decode --method tova --d 6 --n 40 --prefix 30 --plan residual --plan-windows 1",
    "error, rows": "--rows --method topk,snapkv,magicpig --d 8 --n 40 --queries last:6",
    "stability": "--task listops:n=32,batch=2 --method kernelized --d 8 --steps 2 --seeds 1 --condition-tokens 0",
    "bench": "--method linear,skyformer --n 16,32 --d 4 --heads 2 --p 4 --rounds 2 --errors --backward",
    "sweep": "--d 8,12",
}
WITHOUT_NUMBERS = {"bench"}  # its metrics are times
EXACT_WORDS = {
    "status",
    "method",
    "d",
    "n",
    "layer",
    "window",
    "draws_hash",
    "theorem",
    "of",
    "head",
    "target",
    "verdict",
}
NUMBERS = {
    *("metrics", "bound", "measured", "rows"),
    *("cond", "cond_at", "cond_eff", "cond_half", "gradient", "gradient_six", "eigen_min", "eigen_max"),
    *("sensitivity", "output_spectral_relative"),
}
TIMES = ("seconds", "exact_seconds", "repeated_seconds", "ratio_to_exact", "run", "source", "key", "machine")
SMALL = {  # rounding itself, what is divided by it, and a count that it may move
    *("residual", "ratio_to_framework", "ratio_to_framework_frobenius"),
    "matrix_spectral_passes",
}
SINGULAR = 1e10  # condition numbers above are noise
RELATIVE = {
    "error, half precision": 0.1,
    "inject": 1e-2,
    "inject, decode": 1e-2,
    "inject, a plan": 1e-2,
    "stability": 1e-2,
    "condition": 2e-2,
    "budget": 1e-2,
    "audit": 1e-2,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A directory with a two-layer Llama whose four heads share two KV heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return str(save(seeded(lambda: LlamaForCausalLM(config)), tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture
def measured(run, qkv, tiny_bert, llama, text_file, tmp_path, monkeypatch):
    """The records of a command on a device."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(name, device, *more):
        command = name.split(",")[0]
        data = ["--qkv", qkv]
        if command == "inject" or name == "error, rows":
            data = ["--model", tiny_bert if name == "inject" else llama, "--text", text_file]
        elif command in ("stability", "bench"):
            data = []
        elif command == "sweep":
            config = tmp_path / "sweep.yaml"
            config.write_text(f"{{method: [vmean, nystromformer], n: [48, 96], qkv: '{qkv}'}}")
            data = [config]
        elif name == "error, causal":
            data = ["--qkv", causal_file(qkv, tmp_path)]
        out = tmp_path / f"{command}-{device}-{len(more)}".replace(":", "")
        code, _, err = run(command, *data, *COMMANDS[name].split(), "--device", device, "--out", out, *more)
        assert code == 0, err
        return list(read_records(out))

    return call


def causal_file(qkv, folder):
    from safetensors.torch import load_file, save_file

    path = folder / "causal.safetensors"
    save_file(load_file(qkv), path, metadata={"causal": "true"})
    return path


def flat(value, name=""):
    """Every number and word of a record by its path, times and places of the machine aside."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in TIMES:
                yield from flat(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from flat(inner, f"{name}.{place}")
    else:
        yield name, value


def differing(got, expected, relative):
    """Numbers of a metric that differ by more than rounding, and words that differ."""
    a, b = dict(flat(got)), dict(flat(expected))
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    actual = []
    for name, value in b.items():
        words = set(name.split("."))
        if isinstance(value, float) and isinstance(a[name], float):
            if words & NUMBERS and not words & SMALL and abs(value) < SINGULAR:
                same = math.isclose(a[name], value, rel_tol=relative, abs_tol=relative * 1e-2)
                actual += [] if same else [(name, a[name], value)]
        elif words & EXACT_WORDS and a[name] != value:
            actual.append((name, a[name], value))
    return actual


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.share] * (one == "error")) for one in COMMANDS])
def test_the_records_are_those_of_the_cpu(name, measured, command_place):
    expected, got = measured(name, "cpu"), measured(name, command_place.device.type, "--force")
    assert len(got) == len(expected) and got

    def order(records):
        return sorted(records, key=lambda one: str([one.get(word) for word in sorted(EXACT_WORDS)]))

    for one, other in zip(order(got), order(expected), strict=True):
        if name in WITHOUT_NUMBERS:
            assert one["status"] == other["status"] == "ok"
        else:
            assert not differing(one, other, RELATIVE.get(name, 2e-3))


def test_two_runs_have_the_same_numbers(measured, command_place):
    device = command_place.device.type
    first, second = measured("error", device), measured("error", device, "--force")
    for one, other in zip(first, second, strict=True):
        assert one["metrics"] == other["metrics"] and one["draws_hash"] == other["draws_hash"]


def test_two_processes_on_one_device(measured, command_place):
    device = command_place.device.type
    alone, together = measured("sweep", device), measured("sweep", device, "--jobs", "2")
    by_key = {one["key"]: one for one in alone}
    assert len(by_key) == len(together)
    for one in together:
        assert not differing(one, by_key[one["key"]], 1e-9 if device == "cuda" else 1e-3)


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_ray_on_one_device(measured, gpu):
    alone, away = measured("sweep", "cuda"), measured("sweep", "cuda", "--backend", "ray:local", "--jobs", "1")
    by_key = {one["key"]: one for one in alone}
    assert all(one["status"] == by_key[one["key"]]["status"] == "ok" for one in away) and len(away) == len(alone)


def test_a_run_says_which_device_it_used(measured, command_place, tmp_path):
    import json

    measured("error", command_place.device.type)
    folder = next(tmp_path.glob("error-*"))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert command_place.device.type in json.dumps(manifest)
