"""The grammar of lists, methods and texts on the command line and in files; folded text."""

import pytest

from attnprobe.errors import UsageError
from attnprobe.grammar.folding import fold_name, fold_text
from attnprobe.grammar.lists import (
    chosen_numbers,
    file_and_function,
    numbers,
    parts,
    positives,
    short_name,
    wikitext_name,
)
from attnprobe.methods import METHODS


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", (7,)), ("0,5,2-4", (0, 5, 2, 3, 4)), ("3,1-3", (3, 1, 2)), (" 1 , 2 ", (1, 2)), ("4-4", (4,))],
)
def test_a_list_of_whole_numbers_keeps_its_order_and_each_once(text, expected):
    assert numbers(text, "n") == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1,,2", "1-", "5-2", "3-1", "0-100000", "1234567890"])
def test_what_is_no_list_of_whole_numbers_names_the_option(text):
    with pytest.raises(UsageError, match=r"^n: "):
        numbers(text, "n")


def test_numbers_that_do_not_exist_are_refused_with_those_that_do():
    assert chosen_numbers([2, 0], "head", range(3)) == (2, 0) and chosen_numbers("all", "head", range(3)) == (0, 1, 2)
    with pytest.raises(UsageError, match="head 3 does not exist; choose from 0-2"):
        chosen_numbers([3], "head", range(3))
    with pytest.raises(UsageError, match="layer 1 does not exist; choose from 0, 2"):
        chosen_numbers([1], "layer", (0, 2))


def test_positive_numbers_come_sorted_and_once():
    assert positives("2,0.5,2", "s") == (0.5, 2.0) and positives("1e300", "s") == (1e300,)
    for wrong in ("0", "-1", "nan", "inf", "x", ""):
        with pytest.raises(UsageError, match="^s: "):
            positives(wrong, "s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("skyformer", ("skyformer", None)),
        ("skyformer:", ("skyformer", "")),
        ("a/b.py:fn:k=1,m=2", ("a/b.py:fn", "k=1,m=2")),
        ("a/b.py:fn", ("a/b.py:fn", None)),
        ("torch:flex:block=64", ("torch:flex", "block=64")),
    ],
)
def test_a_method_is_its_name_and_the_text_of_its_options(text, expected):
    assert parts(text) == expected


def test_the_short_name_of_a_file_has_no_folder():
    assert short_name("a/b/mine.py:fn") == short_name(r"a\mine.py:fn") == "mine.py:fn"
    assert file_and_function("svd") is None and short_name("svd") == "svd"


def test_wikitext_has_two_spellings_and_files_have_none():
    assert wikitext_name("wikitext-2:tokenized") == wikitext_name("wikitext-2:tokenised") == "wikitext-2:tokenised"
    assert wikitext_name("wikitext-103") is None


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


def test_a_word_that_is_longer_than_a_line_stays_whole():
    assert fold_text(f"one two\n{'x' * 30} three", 10) == f"one two\n{'x' * 30}\nthree"
