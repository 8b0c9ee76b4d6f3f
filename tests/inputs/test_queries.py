"""Selections of queries: which tokens each form names, and what is refused."""

import pytest
import torch

from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs.queries import Queries


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [
        ("last:3", 10, [7, 8, 9]),
        ("last:10", 10, list(range(10))),
        ("every:4", 10, [3, 7]),
        ("every:1", 3, [0, 1, 2]),
        ("1000-1002", 2000, [1000, 1001, 1002]),
        ("7, 0,2-3", 10, [0, 2, 3, 7]),
        ("5", 6, [5]),
    ],
)
def test_the_tokens_of_a_form(text, n, expected):
    actual = Queries(text).positions(n)
    assert actual.tolist() == expected and actual.dtype == torch.int64


def test_random_tokens_are_sorted_distinct_and_always_the_same():
    actual = Queries("random:50").positions(200)
    assert len(set(actual.tolist())) == 50 and actual.tolist() == sorted(actual.tolist()) and int(actual.max()) > 100
    assert torch.equal(actual, Queries("random:50").positions(200))
    assert not torch.equal(actual, Queries("random:50").positions(201))
    assert Queries("random:6").positions(6).tolist() == list(range(6))


def test_a_file_of_numbers_is_known_by_its_numbers(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.csv"
    one.write_text("12\n3\n3\n40\n")
    two.write_text("3,12, 40")
    assert Queries(str(one)).positions(41).tolist() == [3, 12, 40]
    assert Queries(str(one)).fact == Queries(str(two)).fact and Queries(str(one)).fact.startswith("3 tokens, sha256 ")


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("last:0", UsageError, "queries: last:0 needs a positive number, as in last:64"),
        ("every:x", UsageError, "queries: every:x needs a positive number"),
        ("random:", UsageError, "queries: random: needs a positive number"),
        ("5-3", UsageError, "queries: the range 5-3 runs backwards; write 3-5"),
        ("3,,4", UsageError, "queries: '' is not a whole number"),
        ("lsat:3", SourceError, "queries 'lsat:3' is neither a file nor one of last:256, every:64, random:512"),
        ("no/such/file", SourceError, "queries 'no/such/file' is neither a file nor"),
    ],
)
def test_what_is_no_selection_is_refused(text, error, says):
    with pytest.raises(error) as caught:
        Queries(text)
    assert says in str(caught.value)


def test_a_file_of_other_things_is_refused(tmp_path):
    path = tmp_path / "rows"
    for data, says in ((b"1\n-2\n", "'-2' is not"), (b"", "'' is not"), (b"\xff", "cannot be read")):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=says):
            Queries(str(path))


@pytest.mark.parametrize(("text", "needed"), [("last:9", 9), ("random:9", 9), ("every:9", 9), ("2-8", 9), ("8", 9)])
def test_a_text_that_is_too_short_is_refused(text, needed):
    assert len(Queries(text).positions(needed)) >= 1
    with pytest.raises(UsageError, match=f"queries {text}: n=8 is too short, at least n=9 is needed"):
        Queries(text).positions(8)
