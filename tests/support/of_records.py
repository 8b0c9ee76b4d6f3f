"""The commands whose cells are records. Those whose cells are rows have tests of their own, in tests/show."""

from attnprobe.experiments import EXPERIMENTS, experiment

OF_RECORDS = tuple(name for name in EXPERIMENTS if experiment(name).catalogue is None)
