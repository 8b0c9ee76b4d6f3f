"""``attnprobe spectrum``."""

from __future__ import annotations

from ..base import Experiment
from .request import SpectrumOutput, SpectrumRequest

__all__ = ["EXPERIMENT", "SpectrumOutput", "SpectrumRequest", "measure_spectra"]

EXPERIMENT = Experiment(
    name="spectrum",
    summary="Compute singular values and effective ranks of attention matrices.",
    request=SpectrumRequest,
    output=SpectrumOutput,
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
measure_spectra = EXPERIMENT.measure
