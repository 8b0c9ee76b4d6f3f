"""The records of ``attnprobe spectrum``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field

from ...records.shapes import Count, Number, PerHead, Place, Shape, per_head, said

Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]
Ranks = dict[Annotated[str, Field(pattern=r"^[0-9.e+-]{1,30}$")], Count | None]


class SpectrumRecord(Place):
    """The singular values or the eigenvalues of one matrix of one head."""

    of: Annotated[str, said("the matrix, or the method whose matrix it is")]
    kind: Annotated[Literal["singular", "eigen"], said("singular values or eigenvalues")]
    head: Annotated[Count, said("the head")]
    metrics: Annotated[dict[str, PerHead], said("numbers of the spectrum by name, in a list of one")]
    method: NotRequired[Annotated[str | None, said("the method; null for a matrix")]]
    weights: NotRequired[Annotated[str | None, said("pretrained, initialized or initialized-qkv")]]
    singular_values: NotRequired[Annotated[list[Number], said("sorted, the largest first")]]
    eigenvalues: NotRequired[Annotated[list[Number | Pair], said("sorted by modulus; a complex value is a pair")]]
    size: NotRequired[Annotated[Count | None, said("number of values of the matrix")]]
    complete: NotRequired[Annotated[bool | None, said("whether all values are here")]]
    log_scale: NotRequired[Annotated[Number | None, said("values are those of the matrix divided by exp(log_scale)")]]
    frobenius: NotRequired[Annotated[Number | None, said("the Frobenius norm of the matrix")]]
    stable_rank: NotRequired[Annotated[Number | None, said("‖·‖_F²/‖·‖₂²")]]
    entropy_rank: NotRequired[Annotated[Number | None, said("exp of the entropy of σ²/Σσ²")]]
    participation_ratio: NotRequired[Annotated[Number | None, said("(Σσ²)²/Σσ⁴")]]
    rank_90: NotRequired[Annotated[Count | None, said("values that hold 90 % of Σσ²")]]
    rank_95: NotRequired[Annotated[Count | None, said("values that hold 95 % of Σσ²")]]
    rank_99: NotRequired[Annotated[Count | None, said("values that hold 99 % of Σσ²")]]
    d_spectral: NotRequired[Annotated[Ranks | None, said("by ε, the rank at which the spectral error is ε")]]
    d_frobenius: NotRequired[Annotated[Ranks | None, said("by ε, the rank at which the Frobenius error is ε")]]
    error: NotRequired[Annotated[list[Number | None] | None, said("bounds of the errors of the values")]]
    upper: NotRequired[Annotated[list[Number | None] | Number | None, said("bounds of the values")]]
    passes: NotRequired[Annotated[Count | None, said("passes over the matrix")]]
    closed: NotRequired[Annotated[bool | None, said("whether the intervals reached their width")]]


NUMBERS = (
    *("of", "kind", "singular_values", "eigenvalues", "size", "complete", "log_scale", "duplicates", "seed"),
    *("stable_rank", "entropy_rank", "participation_ratio", "rank_90", "rank_95", "rank_99"),
    *("d_spectral", "d_frobenius", "frobenius", "error", "upper", "passes", "closed", "draws_hash", "seconds"),
)


def _rows(record: SpectrumRecord) -> Iterator[dict[str, Any]]:
    yield {name: value for name, value in record.items() if name in ("head", *NUMBERS)}


COLUMNS = {
    "d_spectral[ε]": "the rank at which the spectral error is ε, a column for each ε",
    "d_frobenius[ε]": "the rank at which the Frobenius error is ε",
    "singular_values": "the list of values",
    "eigenvalues": "the list of values with `--kind eigen`",
    "error": "the list of bounds of the errors of the values",
    "upper": "the list of bounds of the values",
}
SHAPE = Shape(SpectrumRecord, per_head, _rows, COLUMNS)
