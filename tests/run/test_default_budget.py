"""The default budget: it stays where every method takes it, and is smaller where one refuses it."""

import json

import pytest

from attnprobe.experiments.error import ErrorRequest
from attnprobe.experiments.error.measure import ErrorCells
from attnprobe.timings import Timings

DEFAULT = {"d": "default"}


@pytest.mark.parametrize(
    "n, methods, origin, expected",
    [
        (96, ("skyformer",), DEFAULT, (4,)),  # half of the 8 columns of V
        (3, ("skyformer", "nystromformer"), DEFAULT, (1,)),  # nystromformer takes up to n
        (96, ("skyformer", "nystromformer"), {"d": "command line"}, (128,)),
        (96, ("skyformer", "nystromformer"), {}, (128,)),  # from Python, nobody knows that none was given
    ],
)
def test_the_default_budget_fits_the_tokens_and_every_method(qkv, n, methods, origin, expected):
    lines: list[str] = []
    request = ErrorRequest(qkv=str(qkv), n=(n,), methods=methods, origin=origin, device="cpu")
    cells = ErrorCells(request, lines.append, Timings())
    assert cells.parts[0][1].d == expected
    assert [f"d={expected[0]}, not the default" in line for line in lines] == [True] * (expected == (1,))


def test_budgets_that_were_given_are_measured(run, qkv):
    code, _, err = run("error", "--qkv", qkv, "--n", 40, "--d", 128, "--out", "r")
    assert code == 2 and "d=128 exceeds n_q + n_k=80" in err


@pytest.mark.parametrize(
    "command",
    [
        "theory --qkv qkv.safetensors --n 64 --repeats 1 --theorem eckart-young,topk-tv,wildcat-trace",
        "stability --task listops:n=64,batch=2 --steps 1 --seeds 1 --condition-tokens 0",
    ],
)
def test_every_default_method_runs_on_few_tokens(run, qkv, tmp_path, command):
    code, _, err = run(*command.split(), "--device", "cpu", "--out", "r")
    records = [json.loads(line) for line in (tmp_path / "r/records.jsonl").read_text().splitlines()]
    assert code == 0 and {record["status"] for record in records} == {"ok"}, err


def test_a_theorem_that_takes_no_budget_says_which_it_takes(run, qkv):
    code, _, err = run("theory", "--qkv", qkv, "--theorem", "wildcat-trace", "--d", 200, "--repeats", 1, "--out", "r")
    assert code == 2 and "d=200 exceeds n_k=96; choose d in 1..96" in err
