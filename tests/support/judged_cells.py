"""Cells whose errors tests write down, of one source, for comparisons."""

import numpy as np
from error_records import cell as a_cell

SOURCE = {"model": "minilm", "model_sha256": "53aa" * 16, "weights": "pretrained", "weights_seed": None}
SOURCE |= {"text": "embedded", "text_sha256": "71f2" * 16, "tokenizer_sha256": "be50" * 16, "positions": "segment"}
SOURCE |= {"dtype": "float32", "unk_fraction": 0.0, "fallback": []}
METRIC = "output_spectral_relative"


def cell(values=(1.0, 2.0), method="skyformer", d=16, window=0, seed=0, metric=METRIC, **fields):
    place = {"schema": 1, "command": "error", "window": window, "seed": seed, "source": SOURCE, "draws_hash": "one"}
    return a_cell(method, d, values, **{**place, "metrics": {metric: list(values)}, **fields})


def run(*values, **fields):
    """A run with one window for each list of values."""
    return [cell(value, window=window, **fields) for window, value in enumerate(values)]


WORSE, BETTER = 2 * [1.0, 2.0, 3.0, 4.0], 2 * [0.5, 1.25, 2.5, 2.5]


def methods(**fields):
    """Eight heads in two windows; the wide blocks are better in each."""
    narrow = run(WORSE, WORSE, method="blr", options={}, **fields)
    return narrow + run(BETTER, BETTER, method="blr", options={"block": 64}, **fields)


LAYERS = {layer: np.random.default_rng(layer).lognormal(size=(2, 2, 4)) for layer in (1, 4, 5)}  # method, window, head


def of_layers(layers=LAYERS, **fields):
    """Two methods in two windows of four heads, in each layer."""
    return [
        cell(list(values), method=name, window=w, layer=layer, draws_hash=None, **fields)
        for layer in layers
        for name, of in zip("xy", LAYERS[layer], strict=True)
        for w, values in enumerate(of)
    ]
