"""The figures of docs/results/rounding.md and its table of estimates, from the runs that this page names.

python docs/figures/rounding.py errors docs/figures/rounding-errors RUN…   # error added against the method's own
python docs/figures/rounding.py steps docs/figures/rounding-steps RUN      # shares of steps
python docs/figures/rounding.py estimate RUN…   # Markdown: how well the estimate predicts, over the heads of all runs
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from attnprobe import open_run
from attnprobe.frame import Rows
from attnprobe.frame.correlation import rank_correlation
from attnprobe.show.catalogue.rounding import CLEAR, FIGURES
from attnprobe.show.figure import draw, save

D, FORMAT = 64, "bf16"
METHODS = {  # of a figure: the name of each method in rows
    "errors": (
        *("nystromformer", "nystromformer:inverse=pinv", "nystromformer:inverse=pinv,rtol=0.01", "mss"),
        *("skyformer:sampler=wor", "skyformer:inverse=schulz,sampler=wor", "performer", "linear", "bigbird"),
    ),
    "steps": ("nystromformer", "nystromformer:inverse=pinv", "mss", "skyformer:sampler=wor", "performer"),
}


def estimates(*runs: str) -> str:
    """A line: heads within a factor of two, and ρ of the estimate over all heads that are finite."""
    frame = pd.concat([open_run(run).frame() for run in runs], ignore_index=True)
    frame = frame[(frame["format"] == FORMAT) & (frame["not_finite"] == 0)].dropna(subset=["rounding_estimate"])
    clear = frame[frame["rounding_estimate"] < CLEAR]
    within = clear["estimate_ratio"].between(0.5, 2, inclusive="neither").mean()

    def rho(rows: Rows, of: str) -> str:
        return f"{rank_correlation(rows['rounding_estimate'], rows[of])[0]:+.2f}"

    every = rho(frame, "amplification"), rho(frame, "rounding_held"), rho(frame[frame["flips"] == 0], "amplification")
    cells = f"{within:.0%} of {len(clear):,} heads", *every
    return f"| {frame['name'].nunique()} methods | {' | '.join(cells)} |"


def main(kind: str, stem: str, *runs: str) -> None:
    if kind == "estimate":
        print(estimates(stem, *runs))
        return
    of_heads, _, of_steps = FIGURES
    figure = of_heads if kind == "errors" else replace(of_steps, rows="0 < order <= 3")
    frames = [open_run(run).frame(kind=figure.kind) for run in runs]
    frame = pd.concat(frames, ignore_index=True)
    shown = frame["name"].isin(METHODS[kind]) & (frame["format"] == FORMAT) & frame["d"].isin([D]).fillna(False)
    shown |= (frame["name"] == "linear") & (frame["format"] == FORMAT) & ("linear" in METHODS[kind])
    frame = frame[shown].sort_values("name", key=lambda names: names.map(METHODS[kind].index), kind="stable")
    save(draw(frame, replace(figure, columns=("source",), shade="")), Path(stem), formats=("svg",))


if __name__ == "__main__":
    main(*sys.argv[1:])
