"""The figures of trained heads on the pages of results, from the runs that these pages name.

python docs/figures/heads.py selections RUN docs/figures/selections-smollm2   # row error and kept mass, by bytes read
python docs/figures/heads.py needle docs/figures/needle RUN…                  # which heads retrieve, and who keeps it
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from attnprobe import open_run
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.files import drawn
from attnprobe.figures.kit import Sheet, canvas, legend, logarithmic, powers_of_two
from attnprobe.figures.looks import looks_of

CURVES = ("topk", "window", "quest", "snapkv", "h2o", "tova", "expected", "knorm")
ITEMSIZE = 2  # bytes of a number in a cache of bfloat16
RETRIEVES = 0.1  # the least mass on the needle of a head that retrieves it
NAMES = {"smollm2": "SmolLM2 135M", "gemma3.gguf": "Gemma 3 270M"}
Record = Mapping[str, Any]


def records_of(folder: str) -> list[Record]:
    return [one for one in open_run(folder).records["error"] if one.get("requested") and one["status"] == "ok"]


def bytes_read(record: Record) -> float:
    """KiB of keys and values that a token reads for one KV head, in bfloat16."""
    return mean(record["metrics"]["kv_read"]) * 2 * record["source"]["p"] * ITEMSIZE / 1024


def selections(records: Sequence[Record]) -> Any:
    """A column for each layer: kept mass above, row error below, against the bytes that a query reads."""
    layers = list(dict.fromkeys(record["layer"] for record in records))
    looks = looks_of([(name, name) for name in CURVES])
    n = records[0]["n"]
    read = [bytes_read(one) for one in records if one["method"] in CURVES]
    ticks = [2**power for power in range(3, 20, 2) if min(read) <= 2**power <= max(read)]

    def page(drawing: Drawing) -> Sheet:
        title = "Kept mass and row error against the bytes of keys and values that a token reads"
        name = NAMES[Path(records[0]["source"]["model"]).name]
        caption = [f"{title}; {name}, n = {n}, means over heads of the mean mass and of the median error of a row."]
        caption += ["topk (black) computes all scores: no choice of as many keys keeps more mass."]
        sheet, axes = canvas(drawing, title, caption, (6.9, 3.9), (2, len(layers)), sharex=True, sharey="row")
        handles: dict[str, Any] = {}
        for place, layer in enumerate(layers):
            above, below = axes[place], axes[len(layers) + place]
            for method in CURVES:
                some = [one for one in records if one["method"] == method and one["layer"] == layer]
                some.sort(key=lambda one: one["d"])
                x = [bytes_read(one) for one in some]
                look = {**looks[method], "markersize": 3.5, "linewidth": 1.1}
                if method == "topk":
                    look |= {"color": "black", "linewidth": 1.6, "zorder": 5}
                for axis, metric in ((above, "mass"), (below, "row_error_p50")):
                    values = [mean(one["metrics"][metric]) for one in some]
                    handles[method] = axis.plot(x, values, label=method, **look)[0]
            above.set_title(f"layer {layer}")
            logarithmic(below, "y")
            powers_of_two(below, ticks)
            below.set_xlabel("KiB per KV head")
            above.set_ylim(0, 1)
        axes[0].set_ylabel("kept mass, mean")
        axes[len(layers)].set_ylabel("row error, median")
        legend(sheet, handles, len(CURVES))
        return sheet

    return page


def table(records: Sequence[Record], budgets: Sequence[int]) -> str:
    """Markdown: mass and, after a dot, the row error of each layer and budget, with the keys that a KV head reads."""
    layers = list(dict.fromkeys(record["layer"] for record in records))
    places = [(layer, d) for layer in layers for d in budgets]
    lines = ["| | " + " | ".join(f"layer {layer}, d = {d}" for layer, d in places) + " | keys read |"]
    lines += ["| --- |" + " ---: |" * (len(places) + 1)]
    for method in dict.fromkeys(record["method"] for record in records):
        own = {(one["layer"], one["d"]): one["metrics"] for one in records if one["method"] == method}
        cells = [f"{mean(own[place]['mass']):.2f}·{mean(own[place]['row_error_p50']):.2f}" for place in places]
        read = mean(value for layer in layers for value in own[layer, budgets[-1]]["kv_read"])
        lines.append(f"| `{method}` | {' | '.join(cells)} | {read:.0f} |")
    return "\n".join(lines)


def needle(runs: Sequence[Sequence[Record]]) -> Any:
    """Two panels for each model: the needle's mass in each head, and the share that each method keeps of it."""

    def page(drawing: Drawing) -> Sheet:
        title = "Which heads attend to the needle, and which methods keep it"
        caption = [f"{title}: mean mass on the needle over the rows that ask for it."]
        caption += [f"Kept: of the mass in heads with more than {RETRIEVES}. d = {runs[0][0]['d']}."]
        sheet, axes = canvas(drawing, title, caption, (6.9, 2.6 * len(runs)), (len(runs), 2))
        for place, records in enumerate(runs):
            masses, some, kept = masses_of(records)
            source = records[0]["source"]
            name = NAMES[Path(source["model"]).name]
            layers, heads = (1 + max(axis) for axis in zip(*masses, strict=True))
            grid = [[masses.get((layer, head), 0.0) for head in range(heads)] for layer in range(layers)]
            left, right = axes[2 * place : 2 * place + 2]
            drawing_of = left.imshow(grid, cmap="magma_r", aspect="auto", vmin=0, interpolation="nearest")
            left.grid(False)
            right.grid(False, axis="y")
            left.set(title=name, xlabel="head", ylabel="layer", xticks=range(heads))
            sheet.figure.colorbar(drawing_of, ax=left, label="mass on the needle")
            methods = sorted(kept, key=kept.__getitem__)
            right.barh(methods, [100 * kept[method] for method in methods], color="#0072B2")
            right.set(xlim=(0, 100), xlabel="% kept", title=f"kept in {len(some)} heads above {RETRIEVES}")
        return sheet

    return page


Place = tuple[int, int]  # a layer and a head


def masses_of(records: Sequence[Record]) -> tuple[dict[Place, float], list[Place], dict[str, float]]:
    """The needle's exact mass in each head, the heads that retrieve it, and the share that each method keeps there.

    Heads of local layers, in which not every method is measured, do not count.
    """
    exact: dict[Place, float] = {}
    kept: dict[str, dict[Place, float]] = defaultdict(dict)
    for one in records:
        metrics = one["metrics"]
        for head, mass, own in zip(one["heads"], metrics["needle_mass"], metrics["needle_mass_kept"], strict=True):
            exact[one["layer"], head] = mass
            kept[one["method"]][one["layer"], head] = min(own, mass)  # more than exact attention gives is not kept
    some = [at for at, mass in exact.items() if mass > RETRIEVES and all(at in own for own in kept.values())]
    total = sum(exact[at] for at in some)
    return exact, some, {method: sum(own[at] for at in some) / total for method, own in kept.items()}


def main() -> int:
    match sys.argv[1:]:
        case ["table", run, budgets]:
            print(table(records_of(run), [int(d) for d in budgets.split(",")]))
            return 0
        case ["selections", run, stem]:
            page = selections(records_of(run))
        case ["needle", stem, *runs] if runs:
            page = needle([records_of(run) for run in runs])
        case _:
            print(__doc__)
            return 2
    for path in drawn([Drawing()], page, Path(stem), Drawing()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
