"""Docstrings and names folded to the width of a terminal."""

import pytest

from attnprobe.grammar.folding import fold_name, fold_text
from attnprobe.methods import METHODS


@pytest.mark.parametrize("width", [76, 80])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_is_explained_in_lines_that_fit(method, width):
    text = method.explain(width)
    assert max(map(len, text.splitlines())) <= width
    assert text.split() == method.explain(200).split()


def test_entries_and_formulas_keep_their_lines():
    text = (
        "A sentence of many words that is folded:\n\n    x = 1\n    y = 2\n\nOptions:\n    a: one\n        more words"
    )
    assert fold_text(text, 24).splitlines() == [
        "A sentence of many words",
        "that is folded:",
        "",
        "    x = 1",
        "    y = 2",
        "",
        "Options:",
        "    a: one",
        "        more words",
    ]


def test_a_name_is_folded_between_its_options_alone():
    name = "skyformer:guard=sampled,rtol=0.1"
    assert fold_name(name, 40) == name
    assert fold_name(name, 5).split() == ["skyformer:", "guard=sampled,", "rtol=0.1"]
