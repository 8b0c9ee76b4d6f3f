"""The levels that errors must have on Wikitext-2 with a fully initialized BERT-base: numbers known beforehand.

Needs Wikitext-2 and the cased vocabulary beside the checkout; a clone without them skips.
"""

import json

import pytest
from paths import SHARED

from attnprobe.experiments.error import ErrorRequest, measure_errors
from attnprobe.experiments.error.view import summarise
from attnprobe.sources import packaged_weights

TEXT, VOCABULARY = SHARED / "wikitext-2-test.txt", SHARED / "bert-base-cased-vocab.txt"
here = pytest.mark.skipif(not TEXT.exists(), reason="Wikitext-2 is not beside the checkout")


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    """Error / V-Mean by (method, n, d): layer 0, four windows, every weight random."""
    folder = tmp_path_factory.mktemp("bert-base")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 28996}))
    (folder / "vocab.txt").write_text(VOCABULARY.read_text())
    spec = {"model": str(folder), "weights": ("initialized",), "text": str(TEXT), "device": "cpu"}
    actual = {}
    for n, d in (((512,), (16, 256)), ((1024,), (16,))):
        request = ErrorRequest(
            **spec, methods=("nystromformer,skyformer",), n=n, d=d, windows=4, out=str(folder / f"{n}")
        )
        rows, _ = summarise(measure_errors(request).outcome.records)
        actual |= {(row["method"], row["n"], row["d"]): row["over_vmean"]["output_spectral"] for row in rows}
    return actual


@here
@pytest.mark.parametrize(
    ("method", "n", "d", "low", "high"),
    [
        ("nystromformer", 512, 16, 0.53, 0.69),
        ("skyformer", 512, 16, 0.54, 0.70),
        ("skyformer", 512, 256, 0.05, 0.15),
        ("nystromformer", 1024, 16, 0.54, 0.70),
        ("skyformer", 1024, 16, 0.55, 0.71),
    ],
)
@pytest.mark.slow
def test_error_over_vmean_has_the_known_level(levels, method, n, d, low, high):
    assert low < levels[method, n, d] < high


@pytest.mark.skipif(not packaged_weights()["sha256_ok"], reason="the packaged MiniLM weights are not installed")
def test_bad_rows_of_pretrained_heads_are_counted_in_every_layer(tmp_path):
    given = {"model": "minilm", "text": "embedded", "device": "cpu", "n": (512,), "d": (128,), "layer": tuple(range(6))}
    methods = ("nystromformer,skyformer",)
    request = ErrorRequest(**given, methods=methods, matrix=False, input_statistics=False, out=str(tmp_path / "r"))
    records = measure_errors(request).outcome.records
    measured = [record for record in records if record["requested"]]
    assert {(r["method"], r["layer"]) for r in measured} == {
        (method, layer) for method in ("nystromformer", "skyformer") for layer in range(6)
    }
    assert all(record["status"] == "ok" and len(record["metrics"]["bad_rows"]) == 12 for record in measured)
    assert sum(sum(r["metrics"]["bad_rows"]) for r in measured if r["method"] == "skyformer") > 0
