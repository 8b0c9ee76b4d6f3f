"""The figures of trained heads on the pages of results, from the runs that these pages name.

python docs/figures/heads.py selections RUN docs/figures/selections-smollm2   # row error and kept mass, by bytes read
python docs/figures/heads.py needle docs/figures/needle RUN…                  # which heads retrieve, and who keeps it
python docs/figures/heads.py table RUN 64,256                                 # Markdown: mass and row error
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from attnprobe import open_run
from attnprobe.frame import Rows
from attnprobe.show.figure import Figure, save, sheets

CURVES = ("topk", "window", "quest", "snapkv", "h2o", "tova", "expected", "knorm")
ITEMSIZE = 2  # bytes of a number in a cache of bfloat16
RETRIEVES = 0.1  # the least mass on the needle of a head that retrieves it
NAMES = {"smollm2": "SmolLM2 135M", "gemma3.gguf": "Gemma 3 270M"}
READ = "KiB per KV head"
SELECTIONS = Figure(
    "selections",
    "Kept mass and row error against the bytes of keys and values that a token reads",
    x=READ,
    y=("mass", "row_error_p50"),
    marks=("line", "point"),
    colour="name",
    columns=("layer",),
    log=(READ, "row_error_p50"),
    center="mean",
    caption="Means over heads. topk computes all scores: no choice of as many keys keeps more mass.",
)
RETRIEVING = Figure(
    "needle-heads",
    "Which heads attend to the needle",
    x="head",
    y="layer",
    value="needle_mass",
    marks=("cell",),
    columns=("model",),
    center="mean",
    caption="Mean mass on the needle over the rows that ask for it.",
)
KEPT = Figure(
    "needle-kept",
    "Which methods keep the needle",
    x="% kept",
    y="name",
    marks=("point",),
    columns=("model",),
    best_first=True,
    caption=f"Of the mass on the needle in heads with more than {RETRIEVES}.",
)


def heads_of(folder: str) -> Rows:
    """The heads of the requested methods of a run, with what a token reads and the name of the model."""
    run = open_run(folder)
    heads = run.frame()
    source = run.records["error"][0]["source"]
    heads = heads[heads["requested"] & (heads["status"] == "ok")]
    bytes_read = heads["kv_read"] * 2 * source["p"] * ITEMSIZE / 1024
    of_place = bytes_read.groupby([heads["name"], heads["layer"], heads["d"]]).transform("mean")
    return heads.assign(**{READ: of_place.round(6), "model": NAMES.get(Path(source["model"]).name, source["model"])})


def kept_of(heads: Rows) -> Rows:
    """The share of the needle's mass that each method keeps in the heads that retrieve it.

    Heads of local layers, in which not every method is measured, do not count.
    """
    place = ["layer", "head"]
    counts = heads.groupby(place)["name"].transform("nunique")
    some = heads[(heads["needle_mass"] > RETRIEVES) & (counts == heads["name"].nunique())]
    own = some[["needle_mass_kept", "needle_mass"]].min(axis=1)  # more than exact attention gives is not kept
    kept = own.groupby(some["name"]).sum() / some.groupby("name")["needle_mass"].sum() * 100
    first = heads.drop_duplicates("name").set_index("name")
    return first.loc[kept.index].assign(**{"% kept": kept}).reset_index()


def table(heads: Rows, budgets: list[int]) -> str:
    """Markdown: mass and, after a dot, the row error of each layer and budget, with the keys that a KV head reads."""
    layers = [*dict.fromkeys(heads["layer"])]
    places = [(layer, d) for layer in layers for d in budgets]
    lines = ["| | " + " | ".join(f"layer {layer}, d = {d}" for layer, d in places) + " | keys read |"]
    lines += ["| --- |" + " ---: |" * (len(places) + 1)]
    for name, rows in heads.groupby("name", sort=False):
        own = rows.groupby(["layer", "d"])[["mass", "row_error_p50"]].mean()
        cells = [f"{own.loc[place, 'mass']:.2f}·{own.loc[place, 'row_error_p50']:.2f}" for place in places]
        read = rows[rows["d"] == budgets[-1]]["kv_read"].mean()
        lines.append(f"| `{name}` | {' | '.join(cells)} | {read:.0f} |")
    return "\n".join(lines)


def written(rows: Rows, figure: Figure, stem: Path) -> None:
    """Draw a figure and print the names of its files."""
    [drawn] = sheets(rows, figure)
    for path in save(drawn, stem, caption=f"{figure.title}\n\n{figure.caption}"):
        print(path)


def main() -> int:
    match sys.argv[1:]:
        case ["table", run, budgets]:
            print(table(heads_of(run), [int(d) for d in budgets.split(",")]))
        case ["selections", run, stem]:
            heads = heads_of(run)
            written(heads[heads["method"].isin(CURVES)], SELECTIONS, Path(stem))
        case ["needle", stem, *folders] if folders:
            runs = [heads_of(folder) for folder in folders]
            first = [rows[rows["name"] == rows["name"].iloc[0]] for rows in runs]
            written(pd.concat(first), RETRIEVING, Path(f"{stem}-heads"))
            written(pd.concat(map(kept_of, runs)), KEPT, Path(f"{stem}-kept"))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
