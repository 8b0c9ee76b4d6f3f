"""The check of arguments by their annotations."""

import pytest
import torch

from attnprobe import UsageError
from attnprobe.grammar.arguments import checked, fault, tensor_fault


class Elsewhere(torch.Tensor):
    """A tensor that says it is on ``meta`` and has operations of its own."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_tensor_without_real_numbers_is_refused():
    assert tensor_fault(torch.ones(2)) is None
    assert "holds no numbers" in tensor_fault(torch.ones(2, device="meta"))
    assert "to_dense()" in tensor_fault(torch.eye(2).to_sparse())
    assert "complex64" in tensor_fault(torch.ones(2, dtype=torch.complex64))
    assert tensor_fault(torch.ones(2, device="meta").as_subclass(Elsewhere)) is None


def test_the_annotations_of_a_function_are_its_check():
    @checked()
    def repeated(word: str, times: int = 1) -> str:
        return word * times

    assert repeated("a", times=2) == "aa"
    for wrong in ({"word": 1}, {"word": "a", "times": "2"}, {"word": "a", "times": True}):
        with pytest.raises(UsageError, match=r"^repeated: (word|times)"):
            repeated(**wrong)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ((1, "a"), tuple[int, int], "[1]='a'; a whole number is needed"),
        ({1: "a"}, dict[str, str], ": a key=1; text is needed"),
        ({"a": 1}, dict[str, str], "['a']=1; text is needed"),
    ],
)
def test_what_is_wrong_inside_a_collection_is_named_by_its_place(value, kind, says):
    assert fault(value, kind) == says
