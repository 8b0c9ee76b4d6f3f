"""The conformance kit: the properties of every method, for your own methods in tests or by ``attnprobe check``."""

from . import claims  # noqa: F401  (registers the properties of tags after the others)
from .cases import PROPERTIES, Case, Fault, Property
from .examine import Verdict, check_method, examine

__all__ = ["PROPERTIES", "Case", "Fault", "Property", "Verdict", "check_method", "examine"]
