"""Methods that compare each query with the keys near it in the order of a hash."""

from . import lsh_qk, reformer  # noqa: F401  (each registers itself)
