"""The notebook: 25 cells, each of which runs, and what it promises is there."""

import ast
import json

import pytest
from paths import ROOT
from sources_helpers import needs_minilm

NOTEBOOK = ROOT / "docs/start/notebook.ipynb"
pytestmark = pytest.mark.skipif(not NOTEBOOK.exists(), reason="not in a checkout")


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text())["cells"]


def test_it_has_25_cells_and_no_stored_output():
    assert len(cells()) == 25
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@needs_minilm
def test_every_cell_runs_in_one_namespace(no_hub, tmp_path, monkeypatch, every_file):
    """A cell that ends in an expression has a value to show, as in Jupyter."""
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names, shown = {"__name__": "notebook"}, []
    for cell in (cell for cell in cells() if cell["cell_type"] == "code"):
        tree = ast.parse("".join(cell["source"]))
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        shown.append(eval(compile(last, cell["id"], "eval"), names) if last else None)
    medians = names["errors"]
    assert {*medians} == {"skyformer", "nystromformer", "topk"} and all(len(error) == 12 for error in medians.values())
    assert len(names["own"]) == 3 * 3 * 12 and (tmp_path / "errors.png").stat().st_size > 5000
    [of_longest] = [value for value in shown if isinstance(value, dict) and 256 in value]
    assert of_longest[256] < 1e-3 < of_longest[32]
