"""Linear algebra of the project: inverses, norms, spectra, certificates, sketches, sampling and hashing."""
