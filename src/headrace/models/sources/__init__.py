"""Where models come from: local paths, the catalogue, wheels of a package index, and a model hub.

Everything fetched is verified before it gets its final name, so a file in the cache can be trusted.
"""

from .catalogue import DEFAULT_MODEL, ModelListing, list_models
from .resolve import resolve_model
from .source import ModelSource

__all__ = ["DEFAULT_MODEL", "ModelListing", "ModelSource", "list_models", "resolve_model"]
