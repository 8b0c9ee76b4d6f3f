"""Methods that compare the queries and keys that hash alike."""

from . import lsh_qk, reformer  # noqa: F401  (each registers itself)
