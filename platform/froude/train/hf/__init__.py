"""Models of Hugging Face transformers, in and out: `froude.train.hf:Model` is the factory of a run.

transformers is imported where a model is built or written, never with this package.
"""

from froude.train.hf.model import Model

__all__ = ["Model"]
