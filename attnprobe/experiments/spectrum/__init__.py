"""``attnprobe spectrum``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import SpectrumOutput, SpectrumRequest

if TYPE_CHECKING:
    from .measure import measure_spectra
else:
    measure_spectra = called("spectrum.measure:measure_spectra")

__all__ = ["EXPERIMENT", "SpectrumOutput", "SpectrumRequest", "measure_spectra"]

EXPERIMENT = Experiment(
    name="spectrum",
    summary="Compute singular values and effective ranks of attention matrices.",
    request=SpectrumRequest,
    output=SpectrumOutput,
    cells=late("spectrum.measure:SpectrumCells"),
    measure=late("spectrum.measure:measure_spectra"),
    view=late("spectrum.view:view"),
    columns=late("spectrum.view:SPECTRUM_COLUMNS"),
    fields=late("spectrum.rows:FIELDS"),
    plots=("spectrum",),
    examples=(
        "--of softmax,unnormalised,gaussian --n 1024 --layer all --plot",
        "--of softmax --weights pretrained,initialized --layer 0,5 --plot",
        "--of softmax,skyformer,nystromformer:inverse=pinv --d 32,128",
        "--of lifted-gaussian --kind eigen --n 512 --format json",
        "--of softmax --n 16384 --k 64",
    ),
    python=(
        "from attnprobe.experiments.spectrum import SpectrumRequest, measure_spectra",
        'measure_spectra(SpectrumRequest(of=("softmax", "skyformer"), layer="all")).outcome.records',
    ),
)
