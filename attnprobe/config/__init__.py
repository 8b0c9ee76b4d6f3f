"""A sweep's YAML file, files of budgets, and which options go together, checked before anything heavy loads."""

from .budgets import Budgets, read_budgets
from .files import Config, Setting, read_config
from .pairs import Asked, refuse_lists, refuse_pairs

__all__ = ["Asked", "Budgets", "Config", "Setting", "read_budgets", "read_config", "refuse_lists", "refuse_pairs"]
