"""A sweep's YAML file, files of budgets, and which options go together, checked before anything heavy loads."""

from ..experiments.budget.file import Budgets, read_budgets
from ..sweeps.contradictions import Asked, refuse_lists, refuse_pairs
from ..sweeps.packaged import packaged_sweeps, sweep_file
from ..sweeps.yaml_file import Config, Setting, read_config

__all__ = [
    "Asked",
    "Budgets",
    "Config",
    "Setting",
    "packaged_sweeps",
    "read_budgets",
    "read_config",
    "refuse_lists",
    "refuse_pairs",
    "sweep_file",
]
