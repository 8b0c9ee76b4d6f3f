"""A method in place of the attention of a model: `injected` for a while, `register_attention` by a name."""

from .injection import attention_by, injected, register_attention

__all__ = ["attention_by", "injected", "register_attention"]
