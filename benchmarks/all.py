"""Every benchmark of the repository, one table of what they found beside its goals, and `RESULTS.md`.

    python benchmarks/all.py [--only methods,startup] [--text FILE] [--out benchmarks/RESULTS.md]

Each script runs alone, in a process of its own, and hands back its numbers with `--json`. A goal is missed where the
number falls short of it by more than the measured spread, half the range between the quartiles of the rounds. What
RESULTS.md holds of a benchmark is its last result with its conditions: what is not run now stays as it is.

Exits 1 where a goal is missed, or a script ends without its numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from measuring import Goal

from attnprobe.machine.processor import clock_mhz
from attnprobe.run.provenance import git_commit, machine, versions

HERE = Path(__file__).resolve().parent
TEXT = ["{text}"]  # stands for --text FILE, where it is given
SCRIPTS = {  # the arguments that keep each below about five minutes on two cores
    "startup": [],
    "methods": [],
    "reference": [],
    "spectrum": ["--heads", "0:0", "--rounds", "3", *TEXT],
    "matrix_error": ["--weights", "initialized", "--n", "4096", "--rounds", "2", "--sweep-n", "0", *TEXT],
    "sweep": ["--weights", "initialized", "--rounds", "3", *TEXT],
    "public": ["--weights", "initialized", "--rounds", "2", *TEXT],
    "theory": ["--weights", "initialized", "--heads", "0:0,2:3", *TEXT],
    "architectures": ["--write", os.devnull],
    "commands": ["--only", "rows,theory,audit"],
    "growth": ["--only", "error,matrix,audit", "--rounds", "1"],
    "scale": ["--ray", "--rounds", "2"],
    "selections": [],
    "rounding": ["--layer", "0"],
    "bits": ["--layers", "1", "10", "--windows", "4", "--steps", "16", "--prompt", "128"],
    "chance": ["--pairs", "100", "--noise", "0"],
    "gpu": ["--device", "cpu", "--small"],  # whether it works; RESULTS-gpu.md has the numbers of a GPU
}

HEAD = """# Latest results of the benchmarks

`python benchmarks/all.py` writes this page. A goal is *missed* if the number falls short of it by more than the spread
of the rounds. The two sides of a ratio are timed in turn, in one process."""


def run(name: str, text: str | None) -> tuple[list[Goal] | None, str]:
    """What a script found, None where it did not say, and its section of RESULTS.md."""
    arguments = [part for one in SCRIPTS[name] for part in (with_text(text) if one in TEXT else [one])]
    before, begin = os.getloadavg()[0], datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "goals.json"
        command = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(path)]
        done = subprocess.run(command, stdout=2)  # what it prints is progress here
        goals = [Goal(**one) for one in json.loads(path.read_text())] if path.exists() else None
    told = " ".join(Path(part).name if "/" in part else part for part in arguments)
    took = (datetime.now(UTC) - begin).total_seconds()
    lines = [f"## {name}", "", f"`python benchmarks/{name}.py{' ' if told else ''}{told}`"]
    loads = f"load average {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    lines += ["", f"{begin:%Y-%m-%d}, {took:.0f} s, {loads}; {conditions()}", ""]
    if goals is None:
        return None, "\n".join([*lines, f"Ended with {done.returncode} and without its numbers."])
    lines += ["| what | found | goal | |", "| --- | ---: | ---: | --- |"]
    return goals, "\n".join([*lines, *map(row, goals)])


def with_text(text: str | None) -> list[str]:
    return [] if text is None else ["--text", text]


def row(goal: Goal) -> str:
    """A line of the table."""
    beside = f" ± {goal.spread:.2g}" if goal.spread else ""
    verdict = "missed" if goal.missed else "met"
    return f"| {goal.name} | {goal.value:.3g}{beside} | {'≥' if goal.at_least else '≤'} {goal.goal:g} | {verdict} |"


def sections(path: Path) -> dict[str, str]:
    """What RESULTS.md holds already, by benchmark."""
    if not path.exists():
        return {}
    parts = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {part.splitlines()[0].removeprefix("## "): part.strip() for part in parts}


def conditions() -> str:
    """Where a benchmark runs."""
    facts, known, clock = machine("cpu"), versions(), clock_mhz()
    several = "s" if facts["threads"] != 1 else ""
    told = f"{facts['cpu']}, {facts['threads']} thread{several} of {facts['cores']} cores, {facts['system']}"
    told += f", {clock:.0f} MHz" if clock else ""
    commit = (git_commit() or "unknown").removesuffix("-dirty")[:12]
    return f"{told}; torch {known['torch']}, Python {known['python']}, after commit {commit}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCRIPTS), help="names, separated by commas")
    parser.add_argument("--text", help="for the scripts that read one")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    args = parser.parse_args()
    names = [name.strip() for name in args.only.split(",")]
    if unknown := [name for name in names if name not in SCRIPTS]:
        parser.error(f"no benchmark {', '.join(unknown)}; choose from {', '.join(SCRIPTS)}")
    kept, goals, broken = sections(args.out), {}, []
    for name in names:
        found, kept[name] = run(name, args.text)
        goals[name] = found or []
        broken += [name] if found is None else []
    body = [kept[name] for name in SCRIPTS if name in kept]
    args.out.write_text("\n\n".join([HEAD, *body]) + "\n", encoding="utf-8")
    width = max((len(goal.name) for some in goals.values() for goal in some), default=0)
    for name, some in goals.items():
        for goal in some:
            mark = "MISSED" if goal.missed else "met"
            beside = f"± {goal.spread:.2g}" if goal.spread else ""
            sign = "≥" if goal.at_least else "≤"
            print(f"{name:13} {goal.name:{width}} {goal.value:9.3g} {beside:10} {sign} {goal.goal:<8g} {mark}")
    for name in broken:
        print(f"{name:13} ended without its numbers")
    return int(bool(broken) or any(goal.missed for some in goals.values() for goal in some))


if __name__ == "__main__":
    sys.exit(main())
