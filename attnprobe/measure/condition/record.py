"""The rows of ``attnprobe condition``.

Kind ``head`` has the error of a method, ``matrix`` the condition of each matrix, ``at`` its condition numbers up to a
rank, ``iteration`` the residuals of its iterated inverse, and ``trial`` its changes in random directions.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...frame.metric import metrics
from ...frame.rows import HeadRow, RowTypes, with_metrics
from ...grammar.validation import Count, said

ERROR = "output_spectral_relative"  # the error that stands beside a condition number
BAD_ROWS = "bad_rows"  # of this error


class OfMatrix(HeadRow):
    """Numbers of one matrix of a head."""

    matrix: Annotated[str, said("its name: A, B, C, B~ or a core")]


class MatrixRow(OfMatrix):
    """The condition of one matrix of a head, beside the error of the method that uses the matrix."""

    size: Annotated[Count, said("its number of rows")]
    inverted: Annotated[bool, said("whether the method inverts it")]
    start: Annotated[str | None, said("the start of the iteration of its inverse: norms or columns")] = None
    flag: Annotated[str | None, said("why it has no finite condition number")] = None
    lemma3: Annotated[
        Literal["holds", "zero", "violated"] | None,
        said("whether the eigenvalues of a scaled core are in (0, 1]; zero: the least is rounding"),
    ] = None


class AtRow(OfMatrix):
    """The condition number of a matrix without its smaller singular values."""

    k: Annotated[Count, said("the rank of the last singular value that counts, from 1")]


class IterationRow(OfMatrix):
    """One step of the Schulz iteration of the inverse of a matrix."""

    inverted: Annotated[bool, said("whether the method inverts it")]
    iteration: Annotated[Count, said("the step of the iteration, from 0")]


class TrialRow(OfMatrix):
    """The change of a matrix with Q and K in one random direction."""

    trial: Annotated[Count, said("the number of the direction")]


SHAPE = RowTypes(
    {
        "head": with_metrics("ConditionHead", HeadRow, metrics(ERROR, BAD_ROWS)),
        "matrix": with_metrics(
            "ConditionMatrix",
            MatrixRow,
            metrics(
                *("cond", "cond_half", "cond_eff", "rank", "repeated", "gradient", "gradient_six"),
                *("eigen_min", "eigen_max", ERROR, BAD_ROWS, "amplification"),
            ),
        ),
        "at": with_metrics("ConditionAt", AtRow, metrics("cond_at")),
        "iteration": with_metrics("ConditionIteration", IterationRow, metrics("residual")),
        "trial": with_metrics("ConditionTrial", TrialRow, metrics("sensitivity")),
    }
)
