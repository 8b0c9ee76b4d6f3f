# Checking types reads the models that the package names, not all 500 of transformers: it takes half the time.
from .auto import *  # noqa: F403
from .bert import *  # noqa: F403
