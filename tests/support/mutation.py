"""Plant one fault at a time in a copy of the package, and see which layer of the tests catches it.

    python tests/support/mutation.py --jobs 2                  # all of `faults.txt`, some minutes
    python tests/support/mutation.py --family sketch           # one family; --method linformer is one method
    python tests/support/mutation.py --jobs 2 --write          # and rewrite docs/explanation/planted-faults.md

The table goes to stdout, a line per fault to stderr. Exit code 0: every fault was caught; 1: at least one survived; 2:
the tests are not green without a fault, a fault no longer applies, or a copy did not run.

A method is judged by its cases of the contract suite and its own test files (`faults.FILES`). Their tests are of four
layers, which `layer` tells apart by what a test uses: third-party oracles, literal twins, the contract, and identities
of the method's own. In one run each layer goes on until its first failure, so that all four have their say; then the
rest of that layer is skipped. This file is the plugin of that run, too.

A new family is new data in `faults.txt`: at least one fault of each kind.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from faults import FAULTS, FILES, KINDS, Fault
from paths import ROOT, test_file

PAGE = ROOT / "docs" / "explanation" / "planted-faults.md"
OTHERS = "\n## The other rooms\n"  # what follows on the page is written by hand
CONTRACT = "test_methods_contract.py"
APART = ("lower bound", "theorems")  # no methods: the contract does not know them
LAYERS = {
    "contract": "the suite that every registered method must pass: its tags, shapes, dtypes, draws, padding, limits",
    "twin": "comparisons with the literal twin: the paper's equations as loops in float64, with the same draws",
    "oracle": "comparisons with other software, including torch's own attention",
    "identities": "other properties in the method's tests: distributions of its draws, variances, limits, exact cases",
}
ORACLES = {"importorskip", "scaled_dot_product_attention", "transformers"}
TIMEOUT = 600  # seconds for one run of pytest


class Broken(Exception):
    """The harness cannot say whether a fault is caught."""


def test_files(method: str) -> list[Path]:
    """The files that judge a method; the contract suite is among them where it is a method."""
    own = FILES.get(method) or (f"test_{method.replace('-', '_')}.py",)
    names = own if method in APART else (CONTRACT, *own)
    return [test_file(name) for name in names]


def planted(text: str, fault: Fault) -> str:
    """``text`` with the fault.

    Raises:
        Broken: its old text does not stand there once.
    """
    actual = text.count(fault.old)
    if actual != 1:
        raise Broken(f"{fault.name}: {fault.file} has its text {actual} times; adapt tests/support/faults.txt")
    return text.replace(fault.old, fault.new)


def judge(method: str, fault: Fault | None = None, root: Path = ROOT) -> dict[str, dict]:
    """Run the tests of ``method`` on a copy: ``{layer: {"ran": number, "failed": first failing test or None}}``.

    Raises:
        Broken: the fault does not apply, or the tests could not be collected.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        copy = Path(name)
        for part in ("attnprobe", "tests"):
            shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "pyproject.toml", copy)
        if fault is not None:
            file = copy / "attnprobe" / fault.file
            file.write_text(planted(file.read_text(), fault))
        report = copy / "report.json"
        settings = {
            "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests" / "support")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "PLANTED_METHOD": method,
            "PLANTED_REPORT": str(report),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-o", "addopts=", "-m", "not slow"]
        command += [
            "-p",
            "no:cacheprovider",
            "-p",
            "mutation",
            *(str(path.relative_to(root)) for path in test_files(method)),
        ]
        done = subprocess.run(
            command, cwd=copy, env=os.environ | settings, capture_output=True, text=True, timeout=TIMEOUT
        )
        if done.returncode not in (0, 1) or not report.exists():
            subject = fault.name if fault else method
            raise Broken(f"{subject}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}")
        actual = json.loads(report.read_text())
        if not Path(actual.pop("package")).is_relative_to(copy.resolve()):
            raise Broken(f"{method}: the tests ran on another package than the copy")
        return actual


# The plugin, which runs inside pytest


def layer(function: FunctionType, file: str) -> str:
    """The layer of a test, from the names that it and the helpers in its file use.

    A name of the `twins` modules makes it a twin's, but for ``exact``, which is the definition of attention itself.
    """
    names, twin = set(), False
    queue, seen = [function], set()
    while queue:
        now = queue.pop()
        codes = [now.__code__]
        while codes:
            code = codes.pop()
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            for name in code.co_names:
                names |= set(name.split("."))
                value = now.__globals__.get(name)
                if name == "TWINS" or str(getattr(value, "__module__", "")).startswith("twins"):
                    twin |= getattr(value, "__name__", "") != "exact"
                elif isinstance(value, FunctionType) and value.__globals__ is now.__globals__ and value not in seen:
                    seen.add(value)
                    queue.append(value)
    if names & ORACLES:
        return "oracle"
    if twin:
        return "twin"
    return "contract" if file == CONTRACT else "identities"


class Plugin:
    """Keeps the tests of one method, and ends each layer at its first failure."""

    def __init__(self, method: str, report: str) -> None:
        self.method, self.report = method, Path(report)
        self.found = {name: {"ran": 0, "failed": None} for name in LAYERS}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from attnprobe.methods import METHODS

        kept = []
        for item in items:
            name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
            if name not in METHODS or name == self.method:
                item.layer = layer(item.function, item.path.name)
                kept.append(item)
        items[:] = kept

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.found[item.layer]["failed"]:
            pytest.skip("its layer has caught the fault")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        facts = self.found[item.layer]
        facts["ran"] += report.when == "call" and not report.skipped
        if report.failed and facts["failed"] is None:
            facts["failed"] = item.nodeid.removeprefix("tests/")
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        import attnprobe

        self.report.write_text(json.dumps(self.found | {"package": str(Path(attnprobe.__file__).resolve())}))


def pytest_configure(config: pytest.Config) -> None:
    if "PLANTED_REPORT" in os.environ:
        config.pluginmanager.register(Plugin(os.environ["PLANTED_METHOD"], os.environ["PLANTED_REPORT"]))


# The command


def check_green(methods: list[str], jobs: int) -> None:
    """Run the tests of every method without a fault.

    Raises:
        Broken: one fails, or a layer that everything has is empty.
    """
    with ThreadPoolExecutor(jobs) as pool:
        for method, actual in zip(methods, pool.map(judge, methods), strict=True):
            failed = [facts["failed"] for facts in actual.values() if facts["failed"]]
            if failed:
                raise Broken(f"{method}: without any fault {failed[0]} fails")
            if not actual["identities"]["ran"] and not actual["twin"]["ran"]:
                raise Broken(f"{method}: no test of its own ran")
            counts = ", ".join(f"{name} {facts['ran']}" for name, facts in actual.items())
            print(f"no fault, {method}: green ({counts})", file=sys.stderr)


def measure(fault: Fault) -> tuple[Fault, dict[str, dict], float]:
    start = time.monotonic()
    actual = judge(fault.method, fault)
    seconds = time.monotonic() - start
    by = [name for name, facts in actual.items() if facts["failed"]]
    verdict = f"caught by {', '.join(by)}" if by else "SURVIVED"
    print(f"{fault.family}, {fault.kind}, {fault.name}: {verdict} ({seconds:.0f} s)", file=sys.stderr)
    return fault, actual, seconds


def cells(actual: dict[str, dict]) -> list[str]:
    """Whether each layer catches it, and the first test of the first that does."""
    words = ["yes" if facts["failed"] else "no" if facts["ran"] else "–" for facts in actual.values()]
    first = next((facts["failed"] for facts in actual.values() if facts["failed"]), None)
    return [*words, "SURVIVED" if first is None else f"`{first.split('::')[1].split('[')[0]}`"]


def table(results: list[tuple[Fault, dict[str, dict], float]]) -> str:
    lines = [
        f"| family | method | kind | fault | {' | '.join(LAYERS)} | first failing test | s |",
        "| --- " * (len(LAYERS) + 6) + "|",
    ]
    for fault, actual, seconds in results:
        row = [fault.family, fault.method, fault.kind, fault.meaning, *cells(actual), f"{seconds:.0f}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def counts(results: list[tuple[Fault, dict[str, dict], float]]) -> str:
    """Of each family, how many faults each layer catches."""
    lines = [f"| family | faults | {' | '.join(LAYERS)} | all |", "| --- " * (len(LAYERS) + 3) + "|"]
    families = dict.fromkeys(fault.family for fault, _, _ in results)
    for family in (*families, "all"):
        caught = [
            {name for name, facts in actual.items() if facts["failed"]}
            for fault, actual, _ in results
            if family in ("all", fault.family)
        ]
        row = [str(sum(name in by for by in caught)) for name in LAYERS]
        lines.append(f"| {family} | {len(caught)} | {' | '.join(row)} | {sum(map(bool, caught))} |")
    return "\n".join(lines)


def page(results: list[tuple[Fault, dict[str, dict], float]], jobs: int, seconds: float) -> str:
    names = (
        "torch",
        "transformers",
        "linformer",
        "nystrom-attention",
        "performer-pytorch",
        "reformer-pytorch",
        "pytest",
    )
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    conditions = textwrap.fill(
        f"Run on {datetime.date.today():%Y-%m-%d} in {seconds / 60:.0f} minutes ({jobs} at a time, one thread each): "
        f"Python {platform.python_version()}, {', '.join(versions)}.",
        120,
        break_on_hyphens=False,
    )
    layers = "\n".join(f"- **{name}**: {words}." for name, words in LAYERS.items())
    kinds = ", ".join(KINDS)
    return f"""# Planted faults

Do the tests notice a wrong method? Each of {len(results)} faults is one wrong edit of the package. This command
makes each edit in a copy of the package, and prints the first test that fails:

```sh
python tests/support/mutation.py --jobs {jobs}
```

The faults are in `tests/support/faults.txt`. Every family has a fault of each kind: {kinds}.

The tests have four layers:

{layers}

A number counts the faults that a layer catches.

{conditions}

{counts(results)}
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/support/mutation.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--family", choices=list(dict.fromkeys(fault.family for fault in FAULTS)))
    parser.add_argument("--method", choices=list(dict.fromkeys(fault.method for fault in FAULTS)))
    parser.add_argument("--jobs", type=int, default=1, help="how many copies run at a time (default 1)")
    parser.add_argument("--write", action="store_true", help="rewrite docs/explanation/planted-faults.md")
    given = parser.parse_args(arguments)
    if given.write and (given.family or given.method):
        parser.error("--write needs all faults, without --family and --method")
    chosen = [f for f in FAULTS if given.family in (None, f.family) and given.method in (None, f.method)]
    if not chosen:
        parser.error(f"there is no fault of method {given.method} in family {given.family}")
    start = time.monotonic()
    try:
        check_green(list(dict.fromkeys(fault.method for fault in chosen)), given.jobs)
        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(measure, chosen))
    except (Broken, subprocess.TimeoutExpired) as problem:
        print(problem, file=sys.stderr)
        return 2
    survivors = [fault.name for fault, actual, _ in results if not any(facts["failed"] for facts in actual.values())]
    print(table(results))
    if given.write:
        _, heading, others = PAGE.read_text().partition(OTHERS)
        PAGE.write_text(page(results, given.jobs, time.monotonic() - start) + heading + others)
    print(f"{len(results) - len(survivors)} of {len(results)} caught", file=sys.stderr)
    for name in survivors:
        print(f"SURVIVED: {name}", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
