"""``attnprobe inject --arithmetic``: what the arithmetic of a format adds to the drift of a model."""

import pytest
import torch
from inject_rows import by_layer, lines_of, metrics, of_kind, shown_of
from scipy.stats import spearmanr
from sources_helpers import VOCABULARY, bert_config, save, seeded, text_of

from attnprobe import capture, injected, rounding_errors
from attnprobe.errors import UsageError
from attnprobe.judge.gates import check
from attnprobe.judge.parse import parse_gate
from attnprobe.measure.inject import GATED, InjectRequest, measure_drift

LAYERS, HEADS, N, D = 3, 4, 40, 8
METHODS = ("nystromformer", "performer")
SINGLE = 1e-4  # of a float32 model from the same with its method in float64, through three layers

USERS = """
import torch
from attnprobe import Approximation

def leaves(qkv, d):
    return Approximation(None, torch.from_numpy(qkv.v.numpy().copy()))

def single(qkv, d):
    weights = torch.softmax(qkv.scale * qkv.q.float() @ qkv.k.float().mT, -1)
    return Approximation(None, (weights @ qkv.v.float()).to(qkv.v))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from transformers import BertModel, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
    config = LlamaConfig(vocab_size=len(VOCABULARY), initializer_range=0.3, max_position_embeddings=64, **sizes)
    folder = tmp_path_factory.mktemp("models")
    makers = {
        "bert": lambda: BertModel(bert_config(max_position_embeddings=64)),
        "llama": lambda: LlamaForCausalLM(config),
    }
    return {name: str(save(seeded(make), folder / name)) for name, make in makers.items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "words.txt"
    file.write_text(text_of(400))
    return str(file)


@pytest.fixture(scope="module")
def measured(models, text, tmp_path_factory):
    """The cells of two methods in BERT in float32, float64, bf16, and fp16 under autocast."""
    spec = {"model": models["bert"], "text": text, "device": "cpu", "n": (N,), "d": (D,), "methods": METHODS}
    out = str(tmp_path_factory.mktemp("runs") / "r")
    request = InjectRequest(**spec, arithmetic=("bf16", "fp16:autocast"), per_layer=True, out=out)
    return measure_drift(request).outcome.records


def opened(folder):
    from transformers import AutoModelForCausalLM, BertModel

    auto = AutoModelForCausalLM if folder.endswith("llama") else BertModel
    return auto.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)


def ids_of(text):
    """The tokens of the first window: [CLS] words [SEP]."""
    with open(text) as file:
        words = file.read().split()[: N - 2]
    return torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])


def cell_of(cells, method, arithmetic=None, layer=None):
    """The cell of a method in an arithmetic; of None that of torch."""
    format, _, model = (arithmetic or "").partition(":")
    model = None if format in ("", "float64") else model or "every"
    place = method, format or None, model, layer
    [found] = [c for c in cells if (c["method"], c.get("format"), c.get("arithmetic"), c["layer"]) == place]
    return found


def test_each_method_has_a_row_in_each_arithmetic_and_in_float64(measured):
    named = [(c["method"], c.get("format"), c.get("arithmetic")) for c in measured if c["layer"] is None]
    arithmetics = [(None, None), ("float64", None), ("bf16", "every"), ("fp16", "autocast")]
    assert named == [("exact", None, None), *((method, *one) for method in METHODS for one in arithmetics)]
    assert {c["status"] for c in measured} == {"ok"} and len(measured) == 1 + len(METHODS) * 4 * (1 + LAYERS)
    for cell in measured:
        rounds = cell.get("format") not in (None, "float64")
        assert ("rounding_drift" in metrics(cell)) == ("rounding_local" in metrics(cell)) == rounds
        assert (cell.get("operations") or 0) > 0 if rounds else cell.get("operations") is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("arithmetic", ["bf16", "fp16:autocast"])
def test_the_drift_added_is_from_the_same_method_in_float64(measured, models, text, method, arithmetic):
    model, ids, hidden = opened(models["bert"]), ids_of(text), {}
    for one in ("float64", arithmetic):
        with injected(model, method, D, arithmetic=one):
            hidden[one] = model(ids).last_hidden_state[0].double()
    own, usual, got = model(ids).last_hidden_state[0].double(), hidden["float64"], hidden[arithmetic]
    numbers = metrics(cell_of(measured, method, arithmetic))
    assert numbers["rounding_drift"] == pytest.approx(float((got - usual).norm() / usual.norm()), rel=1e-6)
    assert numbers["drift"] == pytest.approx(float((got - own).norm() / own.norm()), rel=1e-6)
    assert 1e-4 < numbers["rounding_drift"] < numbers["drift"]
    in_float64, in_float32 = (metrics(cell_of(measured, method, one)) for one in ("float64", None))
    assert in_float64["drift"] == pytest.approx(float((usual - own).norm() / own.norm()), rel=1e-6)
    assert in_float64["drift"] == pytest.approx(in_float32["drift"], rel=SINGLE)


@pytest.mark.parametrize("method", METHODS)
def test_the_local_error_added_is_what_rounding_measures(measured, models, text, method):
    """On the same layer: the mean over heads, and each head."""
    model, ids = opened(models["bert"]), ids_of(text)
    calls = [*capture(model, {"input_ids": ids}).values()]
    expected = {}
    for layer, call in enumerate(calls):
        expected[layer] = rounding_errors(call.qkv(), method, D, "bf16").rounding_frobenius.tolist()
        cell = cell_of(measured, method, "bf16", layer)
        assert by_layer(cell, "local", "rounding_local") == {layer: pytest.approx(expected[layer], rel=1e-4)}
        assert metrics(cell)["rounding_local"] == pytest.approx(sum(expected[layer]) / HEADS, rel=1e-4)
    mean = sum(map(sum, expected.values())) / (HEADS * LAYERS)
    assert metrics(cell_of(measured, method, "bf16"))["rounding_local"] == pytest.approx(mean, rel=1e-4)


def test_the_divergence_added_is_of_predicted_words(models, text, tmp_path):
    spec = {"model": models["llama"], "text": text, "device": "cpu", "n": (N,), "d": (D,), "methods": ("performer",)}
    cells = measure_drift(InjectRequest(**spec, arithmetic=("bf16",), out=str(tmp_path / "r"))).outcome.records
    model, ids, log_p = opened(models["llama"]), ids_of(text), {}
    for one in ("float64", "bf16"):
        with injected(model, "performer", D, arithmetic=one):
            log_p[one] = model(ids).logits[0, :-1].double().log_softmax(-1)
    usual, got = log_p["float64"], log_p["bf16"]
    kl = torch.nn.functional.kl_div(got, usual, log_target=True, reduction="none").sum(-1).mean()
    numbers = metrics(cell_of(cells, "performer", "bf16"))
    assert numbers["rounding_kl"] == pytest.approx(float(kl), rel=1e-4) and numbers["rounding_kl"] < numbers["kl"]


def test_the_table_says_whether_the_local_error_predicts_the_drift(measured):
    alone, together = sorted(lines_of(measured, "rounding-predictors"), key=lambda line: line["replaced"])
    assert (alone["replaced"], together["replaced"]) == ("a layer", "all")
    places = [c for c in measured if c["layer"] is not None and c.get("operations")]
    x, y = ([metrics(cell)[name] for cell in places] for name in ("rounding_local", "rounding_drift"))
    assert alone["points"] == len(places) == len(METHODS) * 2 * LAYERS
    assert alone["rho_drift"] == pytest.approx(spearmanr(x, y).statistic)
    ratios = sorted(b / a for a, b in zip(x, y, strict=True))
    assert alone["over_local.median"] == pytest.approx((ratios[5] + ratios[6]) / 2)
    assert together["points"] == 4 and together["rho_drift"] is None  # of too few


def test_tables_without_an_arithmetic_have_the_methods_of_torch_alone(measured):
    plain = [cell for cell in measured if cell.get("format") is None]
    every, wanted = shown_of(measured).rows, shown_of(plain).rows
    of_torch = [line for line in every if line["table"] not in ("rounding", "rounding-predictors")]
    assert {"drift", "layers", "alone", "predictors"} <= {line["table"] for line in of_torch}
    for line, other in zip(of_torch, wanted, strict=True):
        shared = line.keys() & other.keys()
        assert {name: line[name] for name in shared} == {name: other[name] for name in shared}
    in_formats = [(line["name"], line["in_format"]) for line in every if line["table"] == "rounding"]
    assert in_formats == [(method, one) for method in METHODS for one in ("float64", "bf16", "fp16:autocast")]


def test_a_gate_judges_what_rounding_adds_to_each_method_in_each_format(measured):
    """In float64 nothing is added, and in torch's arithmetic nothing is measured: neither is judged."""
    lines = shown_of(measured).gate_lines
    added = {
        (method, one): metrics(cell_of(measured, method, one))["rounding_drift"]
        for method in METHODS
        for one in ("bf16", "fp16:autocast")
    }
    results = check(lines, [parse_gate("rounding_drift=0.005", GATED)])
    assert [result.value for result in results] == pytest.approx([*added.values()])
    assert [result.passed for result in results] == [value <= 0.005 for value in added.values()] != [True] * 4
    assert all(format in result.where for result, (_, one) in zip(results, added, strict=True) for format in [one[:4]])
    drifts = check(lines, [parse_gate("drift=9", GATED)])
    assert [result.value for result in drifts] == [metrics(cell_of(measured, method))["drift"] for method in METHODS]


def test_cells_in_torchs_arithmetic_are_those_without_the_option(measured, models, text, tmp_path):
    spec = {"model": models["bert"], "text": text, "device": "cpu", "n": (N,), "d": (D,), "methods": METHODS}
    plain = measure_drift(InjectRequest(**spec, per_layer=True, out=str(tmp_path / "r"))).outcome.records
    assert [c["key"] for c in measured if c.get("format") is None] == [c["key"] for c in plain]
    assert len({c["key"] for c in measured}) == len(measured)


@pytest.mark.parametrize("layers", [(1,), (0, 1)])
def test_a_model_that_overflows_has_diverged(models, text, tmp_path, layers):
    """Exponentials of the scores are too large for fp16. The next layer has queries that are not finite."""
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom attnprobe import Approximation\n\ndef mine(qkv, d):\n    scores = qkv.scale * qkv.q @ "
        "qkv.k.mT\n    weights = torch.exp(scores + 12)\n    return Approximation(None, weights @ qkv.v / "
        "weights.sum(-1, keepdim=True))\n"
    )
    spec = {"model": models["bert"], "text": text, "device": "cpu", "n": (N,), "d": (D,), "layer": layers}
    spec["methods"] = (f"{tmp_path / 'mine.py'}:mine",)
    cells = measure_drift(InjectRequest(**spec, arithmetic=("fp16", "bf16"), out=str(tmp_path / "r"))).outcome.records
    [fp16] = [cell for cell in cells if cell.get("format") == "fp16"]
    [bf16] = [cell for cell in cells if cell.get("format") == "bf16"]
    assert fp16["status"] == "diverged" and fp16["reason"] == "the last hidden states are not finite"
    assert "inf" in by_layer(fp16, "local", "rounding_local")[1] and metrics(fp16).get("rounding_drift") is None
    assert bf16["status"] == "ok" and metrics(bf16)["rounding_drift"] < 1


def test_a_method_that_is_not_rounded_is_never_a_plain_row(models, text, tmp_path):
    (tmp_path / "mine.py").write_text(USERS)
    spec = {"model": models["bert"], "text": text, "device": "cpu", "n": (N,), "layer": (0,), "d": (D,)}
    spec["methods"] = tuple(f"{tmp_path / 'mine.py'}:{name}" for name in ("leaves", "single"))
    cells = measure_drift(InjectRequest(**spec, arithmetic=("bf16",), out=str(tmp_path / "r"))).outcome.records
    leaves, single = (cell for cell in cells if cell.get("format") == "bf16")
    assert leaves["status"] == "skipped" and "numbers leave torch" in leaves["reason"] and not of_kind(leaves, "head")
    assert single["as_written"] > 0 and "the code casts them to a dtype of its own" in single["reason"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("bf17", "unknown format 'bf17'; did you mean 'bf16'?"),
        ("bf16:autocats", "unknown arithmetic 'autocats'; did you mean 'autocast'?"),
        ("autocast", "arithmetic=autocast names no format; write arithmetic=bf16:autocast, or another format"),
        ("float64", "unknown format 'float64'; choose from fp32, tf32, fp16, bf16, fp8-e4m3, fp8-e5m2"),
        (
            "bf16 --phase decode",
            "arithmetic=bf16: --phase decode runs methods in the model's own arithmetic; choose --phase prefill",
        ),
    ],
)
def test_what_cannot_be_is_one_line(run, models, text, given, says):
    model = models["llama"] if "decode" in given else models["bert"]
    code, out, err = run("inject", "--model", model, "--text", text, "--n", N, f"--arithmetic {given}")
    assert (code, out, err) == (2, "", f"attnprobe: {says}\n")


def test_a_format_that_torch_lacks_is_refused_before_the_model_is_read(monkeypatch, models, text):
    monkeypatch.delattr(torch, "float8_e5m2")
    with pytest.raises(UsageError, match=r"format fp8-e5m2: torch .* has no dtype float8_e5m2; use a newer torch"):
        measure_drift(InjectRequest(model=models["bert"], text=text, n=(N,), arithmetic=("fp8-e5m2",)))


def test_arithmetics_are_a_list_without_repeats():
    request = InjectRequest(arithmetic=("bf16:every", "bf16", "fp16:autocast"))
    assert request.arithmetic == ("bf16", "fp16:autocast")
