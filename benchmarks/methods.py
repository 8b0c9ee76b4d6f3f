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

from attnprobe.experiments.bench import BenchRequest, measure_bench
from attnprobe.experiments.bench.calls import EXACT
from attnprobe.report import open_run, views
from attnprobe.tables.numbers import method_label
from attnprobe.tables.view import View

LINEAR, EXACT_GOAL, BAND, FASTER_AT, SHARE = 1.15, 2.0, 0.15, 4096, 0.25


def goals(found: View) -> list[Goal]:
    """What the rows say beside what they should."""
    listed = []
    for row in found.summary:
        slope, beside = row["time_exponent"], row["time_exponent_spread"] or 0.0
        if slope is None or row["reference"] and row["method"] != EXACT:
            continue
        if row["method"] == EXACT:
            listed.append(
                Goal("distance of exact attention's exponent from 2", abs(slope - EXACT_GOAL), BAND, False, beside)
            )
        elif row["growth"] == "n":
            listed.append(Goal(f"exponent of {method_label(row)}", slope, LINEAR, False, beside))
    here = [row for row in found.rows if row["n"] == FASTER_AT and row["ratio_to_exact"] is not None]
    most = SHARE * next((row["flops"] for row in here if row["method"] == EXACT), 0)
    for row in here:
        if not row["reference"] and row["leading_flops"] is not None and row["leading_flops"] <= most:
            name = f"time of {method_label(row)} over exact attention at n={FASTER_AT}"
            listed.append(Goal(name, row["ratio_to_exact"], 1.0, False, row["ratio_spread"] or 0.0))
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
    print(found.text("table"))
    return finish(goals(found), args.json)


if __name__ == "__main__":
    sys.exit(main())
