"""A sweep's YAML file, and which options go together, both checked before anything heavy loads."""

from .files import Config, Setting, read_config
from .pairs import Asked, refuse_lists, refuse_pairs

__all__ = ["Asked", "Config", "Setting", "read_config", "refuse_lists", "refuse_pairs"]
