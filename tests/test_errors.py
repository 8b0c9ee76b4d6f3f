"""Errors: which exit code each has, and what a misspelt name is answered."""

import pytest

from attnprobe import errors
from attnprobe.errors import nearest, unknown

CODES = {"BadResult": 4, "NotFinite": 2, "SourceError": 3, "Unsupported": 2, "UsageError": 2}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_an_error_has_its_exit_code(name, code):
    assert getattr(errors, name)("x").exit_code == code and issubclass(getattr(errors, name), errors.AttnprobeError)


def test_every_error_is_in_the_table_above():
    kinds = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert kinds == {*CODES, "AttnprobeError"}


def test_a_usage_error_is_a_value_error():
    assert issubclass(errors.UsageError, ValueError) and not issubclass(errors.SourceError, ValueError)


def test_a_misspelt_name_is_answered_with_the_nearest_or_the_choices():
    assert nearest("SKYFORMER", ["skyformer"]) == "; did you mean 'skyformer'?"
    assert str(unknown("thing", "q", ["x", "y"])) == "unknown thing 'q'; choose from x, y"
