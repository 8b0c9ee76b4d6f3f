"""Causal attention at the command line: a decoder's Q, K, V, files that hold them, and what each command does of it."""

import json
import math

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from sources_helpers import VOCABULARY, save, seeded, text_of
from thinned import others_slow

from attnprobe import QKV, approximate, exact, load_qkv, output_errors, row_metrics
from attnprobe.measure.bench.calls import Work, load_call, save_inputs
from attnprobe.reference import exact_output
from attnprobe.show.page import open_run
from attnprobe.theorems.alman2023 import alman2023_entries


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A directory with a two-layer Llama of 4 heads of 8, two of keys, and a text of 400 words."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = LlamaConfig(**sizes, **heads, initializer_range=0.3)
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "text.txt").write_text(text_of(400))
    return ["--model", str(save(seeded(lambda: LlamaModel(config)), folder / "llama")), "--text", folder / "text.txt"]


def loaded(decoder, **options):
    return load_qkv(decoder[1], text=str(decoder[3]), device="cpu", notify=lambda line: None, **options)


def test_errors_of_a_decoder_are_those_of_its_causal_attention(run, decoder, tmp_path):
    options = "--n 40 --d 16 --method window,performer,linformer,svd --format json --out r"
    code, out, _ = run("error", *decoder, options)
    answer = json.loads(out)
    rows = {row["method"]: row for row in answer["rows"] if row["table"] == "error"}
    assert code == 0 and answer["source"]["causal"] is True
    expected = ("skipped", "attention is causal, and linformer has no causal form")
    assert (rows["linformer"]["status"], rows["linformer"]["reason"]) == expected
    qkv = loaded(decoder, n=40)
    assert qkv.causal and qkv.h == 4 and torch.equal(qkv.k[0], qkv.k[1])
    for name in ("window", "performer", "svd", "vmean"):
        approx = approximate(name, qkv, None if name == "vmean" else 16)
        error, actual = output_errors(exact_output(qkv), approx, qkv), rows[name]
        for metric in ("output_spectral_relative", "output_frobenius_relative"):
            assert actual[f"{metric}.mean"] == pytest.approx(float(error[metric].mean()), rel=1e-6)
        dense = approx.operator.dense() - torch.softmax(
            (qkv.scale * qkv.q @ qkv.k.mT).masked_fill(torch.ones(40, 40).triu(1).bool(), float("-inf")), -1
        )
        norm = float(dense.norm(dim=(1, 2)).mean())
        assert actual["matrix_frobenius.mean"] == pytest.approx(norm, rel=1e-4)
    manifest = json.loads((tmp_path / "r/manifest.json").read_text())
    assert manifest["source"]["causal"] is True and "attention: causal" in manifest["described"][0]
    code, out, _ = run("report", "r", "--plot", "none")
    assert code == 0 and "4 heads, causal" in " ".join(out.split()) and "has no causal form" in out


def test_the_entropy_of_causal_rows_is_a_share_of_uniform_rows_not_of_ln_n(run, decoder, tmp_path):
    """A row that sees the keys up to its own has at most their logarithm, far below ln n."""
    args = ("error", *decoder, "--n", 64, "--d", 16, "--method", "window", "--layer", 1, "--no-matrix")
    code, out, _ = run(*args, "--out", "r")
    table = (tmp_path / "r/tables/error-inputs.md").read_text()
    assert code == 0 and "of uniform" in table and "of ln n" not in table
    inputs = open_run("r").frame("inputs")
    nats, share = (float(inputs[name].median()) for name in ("entropy", "entropy_share"))
    assert share == pytest.approx(nats * 64 / sum(math.log(i) for i in range(1, 65)), rel=1e-6)


def test_a_method_without_a_causal_form_alone_is_a_usage_error(run, decoder, tmp_path):
    code, out, err = run("error", *decoder, "--n", 64, "--d", 16, "--method", "linformer", "--out", "r")
    assert (code, out) == (2, "") and "attention is causal, and linformer has no causal form" in err
    assert not (tmp_path / "r").exists()


def test_a_file_keeps_that_it_is_causal(run, decoder, tmp_path):
    assert run("extract", *decoder, "--n", 64, "--layer", "0,1", "--out", "all.safetensors")[0] == 0
    code, out, _ = run("error", "--qkv", "all.safetensors", "--layer", 1, "--d", 16, "--method", "performer")
    assert code == 0 and "4 heads, causal" in " ".join(out.split())
    again = load_qkv(qkv=str(tmp_path / "all.safetensors"), layer=1, device="cpu")
    assert again.causal and torch.equal(again.q, loaded(decoder, n=64, layer=1).q)


OBSERVERS = ("snapkv:observe=8,every=8", "h2o", "h2o:streaming=false", "tova", "expected:observe=8", "window")


@pytest.mark.parametrize(
    "of", others_slow(["model", "cache", "whole file", "file of rows"], lambda of: of[0] in ("model", "file of rows"))
)
def test_queries_name_the_rows_that_are_measured(run, decoder, of):
    """Methods that choose keys by earlier queries observe all of them: the rows are those of a run of all queries."""
    source, rows = decoder, ("--queries", "last:20")
    if of == "cache":
        load_qkv(decoder[1], text=str(decoder[3]), device="cpu", n=64, queries="last:20")
    elif of != "model":
        assert run("extract", *decoder, "--n", 64, "--out", "q.safetensors", *(rows if "rows" in of else ()))[0] == 0
        source, rows = ["--qkv", "q.safetensors"], rows if of == "whole file" else ()
    options = (*OBSERVERS, "--d", 16, "--no-matrix", "--rows", "--format", "json", "--n", 64)
    code, out, err = run("error", *source, *rows, *options)
    assert code == 0, err
    qkv = loaded(decoder, n=64)
    for row in (row for row in json.loads(out)["rows"] if row["table"] == "error"):
        assert (row["status"], row["reason"]) == ("ok", None)
        written = filter(None, row["name"].partition(":")[2].split(","))
        given = {name: yaml.safe_load(value) for name, value in (pair.split("=") for pair in written)}
        approx = approximate(row["method"], qkv, 16, **given)
        mass = row_metrics(exact(qkv), approx, qkv)["mass"][:, 44:]
        assert row["mass.mean"] == pytest.approx(float(mass.mean()), rel=1e-5)


@pytest.mark.parametrize(("causal", "code"), [("true", 0), ("False", 0), ("perhaps", 3)])
def test_a_file_from_elsewhere_says_it_in_its_metadata(run, qkv, causal, code):
    save_file(load_file(qkv), qkv, metadata={"causal": causal})
    actual, out, err = run("error", "--qkv", qkv, "--d", 16, "--method", "window")
    assert actual == code and ("heads, causal" in " ".join(out.split())) == (causal == "true")
    assert code == 0 or 'metadata causal: expected true or false, got "perhaps"' in err


def test_other_commands_measure_causal_matrices_or_say_why_not(run, decoder):
    code, *_ = run("spectrum", *decoder, "--n", 64, "--of", "softmax,lifted-gaussian", "--out", "spectra")
    values = open_run("spectra").frame("singular").query("layer == 0")
    qkv = loaded(decoder, n=64, dtype="float64")
    exact = approximate("softmax", qkv).operator.dense()
    expected = torch.linalg.svdvals(exact[0])[0]
    [largest] = values.query("of == 'softmax' and head == 0 and index == 1")["value"]
    assert code == 0 and largest == pytest.approx(float(expected), rel=1e-5)
    skipped = values.query("of == 'lifted-gaussian'")
    reason = "attention is causal, and lifted-gaussian has no causal form"
    assert len(skipped) and (skipped["reason"] == reason).all() and (skipped["status"] == "skipped").all()
    code, out, _ = run("condition", *decoder, "--n", 64, "--d", 16, "--method", "mss")
    assert code == 0 and "attention is causal, and mss has no causal form" in out
    code, out, _ = run("theory", *decoder, "--n 64 --d 16 --theorem topk-tv,rank-collapse --format json")
    status = {row["theorem"]: (row["status"], row["reason"]) for row in json.loads(out)["rows"]}
    assert code == 0 and status["topk-tv"][0] == "ok"
    wanted = ("skipped", "attention is causal, but the theorem is about attention to all tokens")
    assert status["rank-collapse"] == wanted
    options = "--n 64 --d 16 --method performer,linformer --rounds 1 --no-memory"
    code, out, _ = run("bench", "--source model", *decoder, options)
    assert code == 0 and "attention is causal, and linformer has no causal form" in out


@pytest.mark.parametrize("name", ["exact", "performer"])
def test_what_another_process_measures_is_causal_too(tmp_path, name):
    qkv = QKV(*torch.randn(3, 2, 24, 4, generator=torch.Generator().manual_seed(0)), causal=True)
    save_inputs(tmp_path / "inputs", qkv)
    work = Work(name, None if name == "exact" else 8)
    output = load_call(str(tmp_path / "inputs"), work, "cpu")().output
    assert torch.equal(output, work.call(qkv)().output)
    torch.testing.assert_close(output[:, 0], qkv.v[:, 0])


def test_the_methods_say_which_have_a_causal_form(run):
    code, out, _ = run("methods", "--format", "json")
    tags = {row["name"]: row["tags"] for row in json.loads(out)["rows"]}
    assert code == 0 and "causal" in tags["performer"] and not {"causal", "causal_target"} & set(tags["linformer"])
    assert "no later token moves an earlier row" in " ".join(run("methods", "lsh-qk")[1].split())


def test_sensitivity_keeps_the_causal_mask():
    """Of causal B: what a difference along the future of a query would add is not in it."""
    from attnprobe import exact
    from attnprobe.metrics.condition import exact_matrices, sensitivity

    q, k, v = torch.randn(3, 1, 24, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, causal = QKV(q, k, v), QKV(q, k, v, causal=True)
    seen = []
    actual = sensitivity(lambda one: (seen.append(one.causal), exact(one))[1], causal)
    assert (sensitivity(exact, whole) - actual).abs().min() > 1e-3 and len(seen) > 2 and all(seen)
    for _, matrix, _ in exact_matrices(causal, 0):
        assert not matrix.triu(1).any() and (matrix.diagonal() > 0).all()


def test_spectra_budgets_and_theorems_of_some_queries_are_of_their_rows(run, decoder):
    place = (*decoder, "--n", 60, "--device", "cpu", "--queries", "last:9", "--format", "json")
    qkv = loaded(decoder, n=60, queries="last:9")

    def heads_of(*args, kind="head"):
        assert run(*args, *place, "--out", args[0])[0] == 0
        return open_run(args[0]).frame(kind)

    singular = torch.linalg.svdvals(exact(qkv).dense().double())
    heads = heads_of("spectrum", "--of", "softmax", kind="singular").groupby("head")["value"]
    for (_, found), values in zip(heads, singular, strict=True):
        assert found.tolist() == pytest.approx(values.tolist(), rel=1e-5)

    def error(d):
        return output_errors(exact_output(qkv), approximate("topk", qkv, d), qkv)["output_frobenius_relative"]

    measured = heads_of("budget", "--method", "topk", "--epsilon", 0.3, "--d-min", 1, "--scan")
    least = [next(d for d in range(1, 31) if error(d)[h] <= 0.3) for h in range(qkv.h)]
    assert measured["found"].tolist() == least
    assert set(measured["most"]) == {30}  # half of the keys, however few the queries are
    entries = heads_of("theory", "--theorem", "bounded-entries")["measured"]
    assert entries.tolist() == pytest.approx(alman2023_entries(qkv).tolist(), rel=1e-6)


@pytest.mark.parametrize("command", ["condition", "bench", "inject", "stability"])
def test_other_commands_have_no_queries(run, command):
    code, _, err = run(command, "--queries", "last:4")
    assert code == 2 and "--queries" in err
