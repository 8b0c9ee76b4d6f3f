"""Each method's time and peak memory beside exact attention, and the exponents with which they grow.

    python benchmarks/methods.py [--method all] [--n 2048,4096,8192,16384] [--d 128] [--heads 2] [--p 64] [--rounds 5]
                                 [--dtype float32] [--device auto] [--quadratic-n 4096] [--no-memory]

This is `attnprobe bench`, with goals. Exponents are the slopes of log time over log n by least squares, for n ≥ 2048.

Goals: at most 1.15 for every method whose cost is linear in n, and 2 ± 0.15 for exact attention; no method slower than
exact attention at n = 4096 whose products, as its leading cost counts them, are at most a quarter of those of exact
attention. It is the registry's ``cost`` that says what is linear: one that holds n² or n³ is a yardstick, and one of
n √n (hashing, and sorting) says so; their exponents are held to nothing. Exits 1 where a goal is missed.
"""

from __future__ import annotations

import sys
import tempfile

from measuring import Goal, arguments, finish

from attnprobe.measure.bench import BenchRequest, measure_bench
from attnprobe.measure.bench.calls import EXACT
from attnprobe.show.page import open_run, views
from attnprobe.show.shown import Shown

LINEAR, EXACT_GOAL, BAND, FASTER_AT, SHARE = 1.15, 2.0, 0.15, 4096, 0.25


def goals(found: Shown) -> list[Goal]:
    """What the tables say beside what they should."""
    lines = {table.name: rows for table, rows in found.lines}
    listed = []
    for line in lines["growth"].to_dict("records"):
        slope, beside = line["time_exponent"], line["time_exponent_spread"] or 0.0
        if slope is None or line["reference"] and line["name"] != EXACT:
            continue
        if line["name"] == EXACT:
            listed.append(
                Goal("distance of exact attention's exponent from 2", abs(slope - EXACT_GOAL), BAND, False, beside)
            )
        elif line["growth"] == "n":
            listed.append(Goal(f"exponent of {line['name']}", slope, LINEAR, False, beside))
    here = lines["times"].query(f"n == {FASTER_AT}").dropna(subset="ratio_to_exact.median").to_dict("records")
    most = SHARE * next((line["flops.max"] for line in here if line["name"] == EXACT), 0)
    for line in here:
        if not line["reference"] and line["leading_flops.max"] <= most:
            name = f"time of {line['name']} over exact attention at n={FASTER_AT}"
            spread = (line["ratio_to_exact.p90"] - line["ratio_to_exact.p10"]) / 2
            listed.append(Goal(name, line["ratio_to_exact.median"], 1.0, False, spread))
    return listed


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--method", default="all", help="names, separated by commas")
    parser.add_argument("--n", default="2048,4096,8192,16384")
    parser.add_argument("--d", default="128")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--p", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--quadratic-n", type=int, default=4096, help="longest n for methods that cost n²")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        request = BenchRequest(
            device=args.device,
            dtype=args.dtype,
            methods=(args.method,),
            n=tuple(map(int, args.n.split(","))),
            d=tuple(map(int, args.d.split(","))),
            heads=args.heads,
            p=args.p,
            rounds=args.rounds,
            memory=args.memory,
            quadratic_n=args.quadratic_n,
            out=folder,
        )
        [found] = views(open_run(measure_bench(request).path))
    assert isinstance(found, Shown)
    print(found.text("table"))
    return finish(goals(found), args.json)


if __name__ == "__main__":
    sys.exit(main())
