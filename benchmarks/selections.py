"""Eighteen selectors at four budgets: captured mass, output error, keys read and time, on three kinds of inputs.

    OMP_NUM_THREADS=1 python benchmarks/selections.py --out selections.json   # measures, some minutes
    python benchmarks/selections.py --read selections.json --figure docs/figures/selections

- ``minilm``: all heads of MiniLM on 512 tokens, under a causal mask, which the model was not trained with.
- ``llama 4096``: one layer of a Llama with random weights, 4096 tokens, every eighth row.
- ``llama 32768``: the same, the last 256 rows of 32,768 tokens. 64 more queries before them choose keys.

Random weights have flat rows: the queries of the Llama are scaled so that the scores of a head have standard deviation
3, as in layers 1 and 2 of MiniLM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import Goal, arguments, finish, timed
from torch import Tensor

from attnprobe import QKV, Approximation, approximate, exact, load_qkv, row_metrics
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.files import drawn
from attnprobe.figures.kit import Sheet, canvas, powers_of_two
from attnprobe.figures.looks import looks_of
from attnprobe.operators import Rows
from attnprobe.reference import own_output

SPREAD = 3.0  # standard deviation of the scores of a head
ROWS, BEFORE = 256, 64
LONG = "llama 32768"
KINDS = {
    "all scores": ("topk", "topp", "dsa-oracle"),
    "pages and blocks": ("quest", "moba", "block-topk", "xattention"),
    "patterns": ("window", "tri-shape", "vertical-slash", "flexprefill", "nsa"),
    "kept keys": ("snapkv", "h2o", "tova", "expected", "knorm", "keydiff"),
}
ONE_SHOT = {"streaming": False}


def settings(blocks: int, some_rows: bool) -> dict[str, dict[str, Any]]:
    """The options of each method."""
    return {
        "topk": {},
        "topp": {},
        "quest": {},
        "moba": {"block": blocks},
        "block-topk": {"block": blocks},
        "vertical-slash": {},
        "window": {},
        "tri-shape": {"last": blocks},
        "xattention": {"block": blocks, "stride": 8 if blocks == 64 else 4},
        "flexprefill": {"block": blocks},
        "nsa": {"block": blocks},
        "dsa-oracle": {},
        "snapkv": {},
        "h2o": {**ONE_SHOT, "observe": BEFORE} if some_rows else {},
        "tova": ONE_SHOT if some_rows else {},
        "expected": {},
        "knorm": {},
        "keydiff": {},
    }


def minilm() -> Iterator[tuple[QKV, Tensor]]:
    for layer in range(6):
        qkv = load_qkv(model="minilm", text="embedded", n=512, layer=layer, device="cpu", notify=lambda line: None)
        yield qkv.replace(causal=True), torch.arange(512)


def llama(n: int, first: int) -> QKV:
    """Layer 0 of a Llama with random weights on the bytes of the embedded text: 4 query heads, 2 KV heads of 64."""
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=256, max_position_embeddings=n)
    model: Any = LlamaModel(config).eval()
    text = (files("attnprobe.sources") / "embedded.txt").read_bytes()
    ids = torch.tensor(list((text * (n // len(text) + 1))[:n]))[None]
    attention = model.layers[0].self_attn
    with torch.no_grad():
        states = model.layers[0].input_layernorm(model.embed_tokens(ids))
        cos, sin = model.rotary_emb(states, torch.arange(n)[None])

        def shaped(x):
            return x.view(1, n, -1, 64).transpose(1, 2)

        q, k, v = (shaped(project(states)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
    some = torch.randint(n, (512,), generator=torch.Generator().manual_seed(0))
    keys = k[0].repeat_interleave(2, 0)
    scores = q[0][:, some] @ keys[:, some].mT / 8
    q = q[0] * (SPREAD / scores.std(dim=(1, 2)))[:, None, None]
    return QKV(q, k[0].contiguous(), v[0].contiguous(), causal=True).queries(torch.arange(first, n))


def sources() -> dict[str, tuple[int, tuple[int, ...], bool]]:
    """The tokens of a block, the budgets, and whether some rows are measured."""
    return {
        "minilm": (16, (32, 64, 128, 256), False),
        "llama 4096": (64, (128, 256, 512, 1024), False),
        LONG: (64, (256, 512, 1024, 2048), True),
    }


def inputs(source: str) -> Iterator[tuple[QKV, Tensor]]:
    """Q, K and V, and the rows that are judged."""
    if source == "minilm":
        yield from minilm()
    elif source == "llama 4096":
        yield llama(4096, 0).select([0, 1]), torch.arange(7, 4096, 8)
    else:
        yield llama(32768, 32768 - ROWS - BEFORE).select([0, 1]), torch.arange(BEFORE, BEFORE + ROWS)


def judged(qkv: QKV, rows: Tensor, approx: Approximation) -> dict[str, list[float]]:
    """The means of row metrics over the judged rows, for each head."""
    operator = approx.matrix()
    some = Approximation(Rows(operator, rows), approx.output[:, rows])
    found = row_metrics(exact(qkv.queries(rows)), some, qkv.queries(rows))
    names = ("mass", "mass_efficiency", "row_error", "keys")
    return {name: found[name].mean(1).tolist() for name in names}


def measure(names: list[str], methods: list[str] | None = None) -> list[dict[str, Any]]:
    records = []
    for source in names:
        blocks, budgets, some_rows = sources()[source]
        for qkv, rows in inputs(source):
            rounds = 3 if some_rows else 1
            for method, options in settings(blocks, some_rows).items():
                for d in budgets if methods is None or method in methods else ():
                    run = partial(approximate, method, qkv, d, **options)
                    times = timed({"method": run, "exact": partial(own_output, qkv)}, rounds)
                    approx = times.results["method"]
                    scored = approx.diagnostics["scored"] * qkv.n_q
                    loaded = approx.diagnostics["kv_read"]
                    records.append(
                        {
                            "source": source,
                            "layer": qkv.layer,
                            "method": method,
                            "options": options,
                            "d": d,
                            **judged(qkv, rows, approx),
                            "kv_read": loaded.tolist(),
                            "scored": (scored / qkv.entries).tolist(),
                            "seconds": times.median("method"),
                            "exact_seconds": times.median("exact"),
                        }
                    )
                print(source, qkv.layer, method, flush=True)
    return records


def summary(records: list[dict[str, Any]], source: str, method: str, d: int) -> dict[str, float]:
    """Medians over the heads of a source."""
    some = [one for one in records if (one["source"], one["method"], one["d"]) == (source, method, d)]
    names = ("mass", "mass_efficiency", "row_error", "keys", "kv_read", "scored")
    found = {name: median(value for one in some for value in one[name]) for name in names}
    return found | {"time": median(one["seconds"] / one["exact_seconds"] for one in some)}


def measured(records: list[dict[str, Any]]) -> list[str]:
    """The methods that have records, in the order of their settings."""
    return [method for method in settings(0, False) if any(one["method"] == method for one in records)]


def tables(records: list[dict[str, Any]]) -> str:
    parts = []
    for source in dict.fromkeys(one["source"] for one in records):
        budgets = sources()[source][1]
        heads = " | ".join(f"d = {d}" for d in budgets)
        lines = [
            f"### {source}",
            "",
            f"| | {heads} | keys read | scores |",
            "| --- " + "| ---: " * 6 + "|",
        ]
        for method in measured(records):
            found = [summary(records, source, method, d) for d in budgets]
            cells = [f"{one['mass']:.3f} · {one['row_error']:.3f}" for one in found]
            last = found[-1]
            cost = f"{last['kv_read']:.0f} | {100 * last['scored']:.1f} %"
            lines.append(f"| `{method}` | {' | '.join(cells)} | {cost} |")
        parts.append("\n".join(lines))
    if any(one["source"] == LONG for one in records):
        parts.append(times(records))
    return "\n\n".join(parts)


def times(records: list[dict[str, Any]]) -> str:
    """The time over that of exact attention on long rows, at the least d and at the largest, which orders them."""
    ends = (sources()[LONG][1][0], sources()[LONG][1][-1])
    rows = [(method, *(summary(records, LONG, method, d)["time"] for d in ends)) for method in measured(records)]
    lines = [f"| | d = {ends[0]} | d = {ends[1]} |", "| --- | ---: | ---: |"]
    lines += [
        f"| `{method}` | {least:.2f} | {most:.2f} |" for method, least, most in sorted(rows, key=lambda row: row[2])
    ]
    return "\n".join(["### time over exact attention", "", *lines])


def draw(records: list[dict[str, Any]], stem: str) -> list[Path]:
    """The row error, and ``stem-mass`` the lost mass, against the keys that a query reads: the files' paths."""
    folder, name = Path(stem).parent, Path(stem).name
    paths = []
    for metric, suffix in (("row_error", ""), ("mass", "-mass")):
        page = partial(panels, records=records, metric=metric)
        paths += drawn([Drawing()], page, folder / f"{name}{suffix}", Drawing())
    return paths


def panels(drawing: Drawing, records: list[dict[str, Any]], metric: str) -> Sheet:
    """A row of panels for each kind of selector, a column for each source; `topk` is in all of them."""
    names = list(dict.fromkeys(one["source"] for one in records))
    methods = measured(records)
    kinds = {kind: [one for one in group if one in methods] for kind, group in KINDS.items()}
    looks = looks_of((method, method) for method in methods)
    what = "Row error" if metric == "row_error" else "Lost mass"
    title = f"{what} against the keys that a query reads: medians over heads"
    caption = [f"{title}. A point is a budget. Grey: topk, which computes all scores."]
    caption += ["nsa gives every key a weight and is left out."] if metric == "mass" else []
    shape = (len(kinds), len(names))
    sheet, axes = canvas(drawing, title, caption, 1.9 * shape[0], shape, sharex="col", sharey=True)
    for axis, ((kind, group), source) in zip(axes, product(kinds.items(), names), strict=True):
        curve = partial(points, records, source, metric)
        axis.plot(*curve("topk"), color="#777777", alpha=0.8, linewidth=1.0, zorder=1)
        own = {}
        for method in group:
            if metric != "mass" or method != "nsa":
                own[method] = axis.plot(*curve(method), label=method, markersize=4, linewidth=1.2, **looks[method])[0]
        axis.set_title(f"{source} tokens" if "llama" in source else source)
        axis.set(xscale="log", yscale="log")
        powers_of_two(axis, sources()[source][1], [str(d) for d in sources()[source][1]])
        axis.set_ylabel(f"{what.lower()}\n{kind}" if source == names[0] else "")
        axis.set_xlabel("keys read" if kind == [*kinds][-1] else "")
        if source == names[-1]:
            axis.legend(own.values(), own.keys(), loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return sheet


def points(records: list[dict[str, Any]], source: str, metric: str, method: str) -> tuple[list[float], list[float]]:
    """The keys that a query reads, and the row error or the lost mass, at each budget."""
    every = [summary(records, source, method, d) for d in sources()[source][1]]
    values = [1 - one["mass"] if metric == "mass" else one["row_error"] for one in every]
    return [one["kv_read"] for one in every], values


def goals(records: list[dict[str, Any]]) -> list[Goal]:
    """No method that scores fewer keys than exact attention takes longer, at the smallest budget of long rows."""
    budget = sources()[LONG][1][0]
    some = [one for one in records if one["source"] == LONG and one["d"] == budget and max(one["scored"]) < 1]
    ratios = {one["method"]: one["seconds"] / one["exact_seconds"] for one in some}
    return [
        Goal(f"time of {name} over exact attention, {LONG} keys, d={budget}", ratio, 1.0, False)
        for name, ratio in ratios.items()
    ]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=list(sources()), action="append", help="a source; repeat for more")
    parser.add_argument("--method", choices=list(settings(0, False)), action="append", help="a method; repeat for more")
    parser.add_argument("--out", help="a JSON file for the records")
    parser.add_argument("--read", action="append", help="records to show in place of measuring; repeat for more")
    parser.add_argument("--figure", help="where the figures go: a path without a suffix")
    args = parser.parse_args()
    if args.read:
        records = [one for path in args.read for one in json.loads(Path(path).read_text())]
    else:
        records = measure(args.only or list(sources()), args.method)
    if args.out:
        Path(args.out).write_text(json.dumps(records))
    print(tables(records))
    if args.figure:
        draw(records, args.figure)
    return finish(goals(records), args.json)


if __name__ == "__main__":
    sys.exit(main())
