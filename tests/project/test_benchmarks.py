"""The benchmark scripts: what a goal is, and how `all.py` gathers what scripts found."""

import sys
from importlib import import_module

import pytest
import torch
from paths import ROOT

from attnprobe.run.where.backends import Alone

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A module of the folder of benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return load


def test_a_goal_is_missed_beyond_the_spread_alone(module):
    goal = module("measuring").Goal
    assert not goal("x", 4.0, 4.0).missed and goal("x", 3.9, 4.0).missed
    assert not goal("x", 3.9, 4.0, spread=0.2).missed and goal("x", 3.7, 4.0, spread=0.2).missed
    assert not goal("x", 1.2, 1.15, at_least=False, spread=0.1).missed and goal("x", 1.2, 1.15, at_least=False).missed
    assert goal("x", float("nan"), 1.0).missed and goal("x", float("nan"), 1.0, at_least=False).missed


def test_rounds_are_interleaved_and_ratios_taken_round_by_round(module):
    measuring, order = module("measuring"), []
    actual = measuring.timed({name: lambda name=name: order.append(name) or name for name in "ab"}, rounds=2)
    assert "".join(order) == "ababab" and actual.results == {"a": "a", "b": "b"}
    planted = measuring.Timed({"a": [2.0, 4.0, 6.0], "b": [1.0, 1.0, 2.0]}, {})
    assert planted.ratio("a", "b", 10.0) == (30.0, 5.0) and planted.median("a") == 4.0


def test_all_keeps_what_it_does_not_run_and_exits_1_for_a_missed_goal(module, monkeypatch, tmp_path, capsys):
    every, results = module("all"), tmp_path / "RESULTS.md"
    results.write_text("# Old\n\n## methods\n\nkept as it is\n\n## startup\n\nreplaced\n")
    monkeypatch.setattr(every, "SCRIPTS", {"startup": ["--rounds", "2"], "methods": []})
    monkeypatch.setattr(sys, "argv", ["all.py", "--only", "startup", "--out", str(results)])
    code = every.main()
    text, table = results.read_text(), capsys.readouterr().out
    assert "kept as it is" in text and "replaced" not in text and text.index("## startup") < text.index("## methods")
    assert "| seconds of attnprobe --help beyond a bare interpreter |" in text and "≤ 0.3" in text
    assert code == ("missed" in text.split("## methods")[0].split("## startup")[1]) and table.startswith("startup")
    missed = every.Goal("x", 1.0, 2.0)
    monkeypatch.setattr(every, "run", lambda name, text: ([missed], f"## {name}\n\n{every.row(missed)}"))
    assert every.main() == 1 and "MISSED" in capsys.readouterr().out
    monkeypatch.setattr(every, "run", lambda name, text: (None, f"## {name}\n\nbroken"))
    assert every.main() == 1 and "ended without its numbers" in capsys.readouterr().out


def test_both_sides_of_the_grid_have_the_same_errors(module, tmp_path):
    from safetensors.torch import save_file

    draws = torch.Generator().manual_seed(0)
    save_file({axis: torch.randn(2, 64, 8, generator=draws) for axis in "qkv"}, tmp_path / "qkv.safetensors")
    path, budgets = str(tmp_path / "qkv.safetensors"), [8, 16]
    public = module("public")
    torch.manual_seed(0)  # the public implementations draw from torch's own stream
    mine, other = public.ours(path, budgets), public.notebook(public.loaded(path), budgets)
    assert set(mine) == set(other) == {(name, d) for name in public.METHODS for d in budgets}
    for (name, d), errors in mine.items():
        near = 1e-2 if name == "nystromformer" else 1.0  # no draws; the inverse starts from sums over all heads
        assert torch.allclose(other[name, d].double(), errors, rtol=near), (name, d)


@pytest.mark.parametrize("jobs", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_the_overhead_of_records_is_that_of_a_backend(jobs, module, monkeypatch, tmp_path):
    scale = module("scale")
    monkeypatch.setattr(scale, "GROUPS", 2)
    assert 0 < scale.overhead({"status": "ok"}, str(tmp_path), Alone() if jobs is None else scale.Processes(jobs)) < 1
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2 * scale.CELLS


def test_every_script_is_one_of_all(module):
    texts = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
    scripts = {name for name, text in texts.items() if "__main__" in text} - {"all"}
    assert scripts == set(module("all").SCRIPTS)
    assert all("finish(" in texts[name] for name in scripts)
