"""The figure and the tables of docs/results/bits.md, from the runs that this page names.

python docs/figures/bits.py docs/figures/bits-smollm2 RUN…    # KL against bytes, log-log, a line for each family
python docs/figures/bits.py table RUN…                        # Markdown: KL of each method and share of bytes
python docs/figures/bits.py pairs RUN…                        # ratios of KL on the same windows
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from attnprobe import open_run
from attnprobe.frame import Rows
from attnprobe.frame.summary import summary
from attnprobe.grammar.lists import options_of
from attnprobe.show.figure import Figure, save, sheets

NAMES = {"wikitext-2-test.txt": "Wikitext-2", "argparse.py": "code", "needle": "needles"}
GGML = ("q8_0", "q4_0")
FAMILIES = ("snapkv", "h2o", "snapkv+q4_0", "turboquant", "kivi", "GGML")  # that are drawn
PAIRS = (
    ("turboquant:bits=7", "h2o d=256"),
    ("snapkv+q4_0 d=455", "h2o d=128"),
    ("snapkv+q4_0 d=455", "turboquant:bits=3"),
    ("snapkv+q4_0 d=227", "h2o d=64"),
    ("snapkv+q4_0 d=113", "h2o d=32"),
    ("rotated:q4_0", "q4_0"),
    ("rotated:mxfp4", "mxfp4"),
    ("q4_0:of=k", "q4_0:of=v"),
    ("turboquant:bits=3,of=k", "turboquant:bits=3,of=v"),
)
KL_AGAINST_BYTES = Figure(
    "bits",
    "KL divergence against the bytes of the cache",
    x="share of bytes",
    y="kl",
    marks=("line", "point"),
    points=("point",),
    columns=("text",),
    log=("share of bytes", "kl"),
    span=(5e-5, 5.0),
    center="mean",
    caption="Means over text windows; bytes of keys and values over those in 16 bits a number.",
)


def rows_of(folders: list[str]) -> Rows:
    """The rows of the whole model in some runs, with their text, family and share of the bytes."""
    frames = [with_text(open_run(folder).frame("head"), folder) for folder in folders]
    rows: Any = pd.concat(frames, ignore_index=True)
    exact = rows[rows["method"] == "exact"].groupby("text")["cache_bytes"].first()
    rows = rows[rows["requested"] & (rows["status"] == "ok") & rows["layer"].isna()].copy()
    rows["share of bytes"] = rows["cache_bytes"].astype(float) / rows["text"].map(exact).astype(float)
    rows["point"] = rows["name"].astype(str) + rows["d"].map(lambda d: "" if pd.isna(d) else f" d={d}")
    return rows.assign(family=rows["name"].map(family_of))


def with_text(frame: Rows, folder: str) -> Rows:
    text = open_run(folder).records["inject"][0]["source"]["text"]
    [name] = [words for part, words in NAMES.items() if part in str(text)]
    return frame.assign(text=name)


def family_of(name: str) -> str:
    """A method without its number of bits; of keys or values alone it has none."""
    method, _, options = name.partition(":")
    if "of" in options_of(options):
        return ""
    return "GGML" if method in GGML else method


def page(rows: Rows, stem: Path) -> list[Path]:
    drawn = rows[rows["family"].isin(FAMILIES)].assign(name=lambda some: some["family"])
    [sheet] = sheets(drawn, KL_AGAINST_BYTES, methods=drawn)
    return save(sheet, stem, formats=("svg",))


def table(rows: Rows) -> str:
    """A line for each method and budget: its share of the bytes, and the mean KL of each text with half an interval."""
    lines = summary(rows, ["text", "point"], ["kl", "share of bytes"])
    texts = list(dict.fromkeys(lines["text"]))
    found = [f"| method | bytes | {' | '.join(texts)} |", f"| --- | ---: |{' ---: |' * len(texts)}"]
    for point, of_point in sorted(lines.groupby("point"), key=lambda pair: -pair[1]["share of bytes.mean"].iloc[0]):
        by_text = of_point.set_index("text")
        cells = [
            f"{by_text.loc[text, 'kl.mean']:.2g} ± {by_text.loc[text, 'kl.half']:.2g}" if text in by_text.index else ""
            for text in texts
        ]
        found.append(f"| `{point}` | {of_point['share of bytes.mean'].iloc[0]:.3f} | {' | '.join(cells)} |")
    return "\n".join(found)


def pairs(rows: Rows) -> str:
    """A line for each pair: exp of the mean of ln(KL / KL) over windows, and its 95 % interval by Student's t."""
    texts = list(dict.fromkeys(rows["text"]))
    found = [f"| KL of | over that of | {' | '.join(texts)} |", f"| --- | --- |{' ---: |' * len(texts)}"]
    for one, other in PAIRS:
        cells = []
        for text in texts:
            own = rows[rows["text"] == text]
            a, b = (own[own["point"] == point].set_index("window")["kl"].astype(float) for point in (one, other))
            both: Any = (a / b).dropna()
            logs = both.map(math.log)
            half = stdtrit(len(logs) - 1, 0.975) * logs.std() / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
            low, middle, high = (math.exp(logs.mean() + sign * half) for sign in (-1, 0, 1))
            cells.append(f"{middle:.2g} [{low:.2g}, {high:.2g}]" if len(logs) else "")
        found.append(f"| `{one}` | `{other}` | {' | '.join(cells)} |")
    return "\n".join(found)


def main() -> int:
    match sys.argv[1:]:
        case ["table", *folders] if folders:
            print(table(rows_of(folders)))
        case ["pairs", *folders] if folders:
            print(pairs(rows_of(folders)))
        case [stem, *folders] if folders:
            for path in page(rows_of(folders), Path(stem)):
                print(path)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
