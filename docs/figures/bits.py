"""The figure and the tables of docs/results/bits.md, from the runs that this page names.

python docs/figures/bits.py docs/figures/bits-smollm2 RUN…    # KL against bytes, log-log, a line for each family
python docs/figures/bits.py table RUN…                        # Markdown: KL of each method and share of bytes
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from attnprobe import open_run
from attnprobe.frame.summary import summary
from attnprobe.grammar.lists import options_of
from attnprobe.show.figure import Figure, save, sheets

NAMES = {"wikitext-2-test.txt": "Wikitext-2", "argparse.py": "code", "needle": "needles"}
GGML = ("q8_0", "q4_0")
KL_AGAINST_BYTES = Figure(
    "bits",
    "KL divergence against the bytes of the cache",
    x="share of bytes",
    y="kl",
    marks=("line", "point"),
    points=("point",),
    columns=("text",),
    log=("share of bytes", "kl"),
    center="mean",
    caption="Means over text windows; bytes of keys and values over those in 16 bits a number.",
)


def rows_of(folders: list[str]) -> pd.DataFrame:
    """The rows of the whole model in some runs, with their text, family and share of the bytes."""
    frames = [with_text(open_run(folder).frame("head"), folder) for folder in folders]
    rows = pd.concat(frames, ignore_index=True)
    exact = rows[rows["method"] == "exact"].groupby("text")["cache_bytes"].first()
    rows = rows[rows["requested"] & (rows["status"] == "ok") & rows["layer"].isna()].copy()
    rows["share of bytes"] = rows["cache_bytes"].astype(float) / rows["text"].map(exact).astype(float)
    rows["point"] = rows["name"].astype(str) + rows["d"].map(lambda d: "" if pd.isna(d) else f" d={d}")
    return rows.assign(family=rows["name"].map(family_of))


def with_text(frame: pd.DataFrame, folder: str) -> pd.DataFrame:
    text = open_run(folder).records["inject"][0]["source"]["text"]
    [name] = [words for part, words in NAMES.items() if part in str(text)]
    return frame.assign(text=name)


def family_of(name: str) -> str:
    """A method without its number of bits: formats of GGML and those of e2m1 are a family each."""
    method, _, options = name.partition(":") if not name.startswith("rotated:") else (name, "", "")
    if {"of"} & options_of(options).keys():
        return ""
    return "GGML" if method in GGML else method


def page(rows: pd.DataFrame, stem: Path) -> list[Path]:
    drawn = rows[rows["family"] != ""].assign(name=lambda some: some["family"])
    [sheet] = sheets(drawn, KL_AGAINST_BYTES, methods=drawn)
    return save(sheet, stem, caption=f"{KL_AGAINST_BYTES.title}\n\n{KL_AGAINST_BYTES.caption}", formats=("svg", "png"))


def table(rows: pd.DataFrame) -> str:
    """A line for each method and budget: its share of the bytes, and the mean KL of each text with half its interval."""
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


def main() -> int:
    match sys.argv[1:]:
        case ["table", *folders] if folders:
            print(table(rows_of(folders)))
        case [stem, *folders] if folders:
            for path in page(rows_of(folders), Path(stem)):
                print(path)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
