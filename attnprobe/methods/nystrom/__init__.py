"""Methods that approximate a matrix from some of its rows and columns."""

from . import mss, nystromformer, skyformer, spectral_shift  # noqa: F401  (each registers itself)
