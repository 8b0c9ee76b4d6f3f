"""Methods that choose queries or keys by their importance."""

from . import informer, skeinformer  # noqa: F401  (each registers itself)
