"""CPU seconds of whole commands on the packaged weights and text, and of a cell of row metrics over exact attention.

    python benchmarks/commands.py [--only rows,inject,capture,theory,audit,vattention,magicpig]

Each command runs alone on one thread, in a process of its own, without a cache of Q, K and V. Its time is user and
system time, which other programs disturb less than the clock. ``rows`` is the mean time of the cells of `error --rows`
(twenty methods, two budgets, layer 0 of SmolLM2), divided by that of exact attention of the same heads in float32.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import process_time
from typing import Any

from measuring import Goal, arguments, finish

AUDIT = "--model minilm --n 1024 --queries last:64 --repeats 1000"
POLICIES = "topk quest moba:block=64 window snapkv h2o tova expected knorm keydiff"
COMMANDS = {  # the arguments, the most seconds, and the most MiB
    "inject": (f"inject {POLICIES} --model smollm2 --n 1024 --d 256", 80, None),
    "capture": ("extract --model smollm2 --n 8192 --layer 0,10,20,29 --queries last:256", 60, 1200),
    "theory": ("theory --model minilm --head 0-3", 60, None),
    "audit": ("audit --model minilm --head 0-3", 60, None),
    "vattention": (f"audit vattention {AUDIT}", 60, None),
    "magicpig": (f"audit magicpig {AUDIT}", 60, None),
}
SELECTORS = (
    "topk,topp,quest,moba,block-topk,vertical-slash,window,tri-shape,xattention,flexprefill,nsa,dsa-oracle,"
    "snapkv,h2o,tova,expected,knorm,keydiff,bigbird,random"
)
ROWS, BUDGETS, MOST = 2048, (128, 512), 6.0


def command(name: str) -> list[Goal]:
    """The CPU time and the memory of a command."""
    text, seconds, mib = COMMANDS[name]
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", f"{folder}/qkv.safetensors" if name == "capture" else f"{folder}/run"]
        line = [sys.executable, "-m", "attnprobe", *text.split(), "--text", "embedded", "--device", "cpu", *out]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ATTNPROBE_CACHE_DIR": f"{folder}/cache"}
        process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{text} ended with {os.waitstatus_to_exitcode(status)}")
    goals = [Goal(f"CPU seconds of {name}", used.ru_utime + used.ru_stime, seconds, at_least=False)]
    if mib is not None:
        goals.append(Goal(f"MiB of {name}", used.ru_maxrss / 1024, mib, at_least=False))
    return goals


def cpu_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and its result."""
    begin = process_time()
    result = call()
    return process_time() - begin, result


def rows() -> list[Goal]:
    """The time of a cell of row metrics over that of exact attention."""
    import torch

    from attnprobe import load_qkv
    from attnprobe.measure.error import ErrorRequest, measure_errors
    from attnprobe.reference import own_output

    torch.set_num_threads(1)
    source: dict[str, Any] = {"model": "smollm2", "text": "embedded", "device": "cpu"}
    qkv = load_qkv(**source, n=ROWS, layer=0, notify=lambda line: None)
    exact = min(cpu_seconds(lambda: own_output(qkv))[0] for _ in range(5))
    with tempfile.TemporaryDirectory() as folder:
        request = ErrorRequest(
            **source,
            methods=(SELECTORS,),
            n=(ROWS,),
            d=BUDGETS,
            rows=True,
            matrix=False,
            input_statistics=False,
            out=folder,
        )
        seconds, run = cpu_seconds(lambda: measure_errors(request))
    cells = sum(record["requested"] for record in run.outcome.records)
    return [Goal("time of a cell of error --rows over exact attention", seconds / cells / exact, MOST, at_least=False)]


def main() -> int:
    names = ["rows", *COMMANDS]
    parser = arguments(__doc__)
    parser.add_argument("--only", default=",".join(names), help="names, separated by commas")
    args = parser.parse_args()
    goals = []
    for name in args.only.split(","):
        found = rows() if name == "rows" else command(name)
        print(*found, sep="\n", flush=True)
        goals += found
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
