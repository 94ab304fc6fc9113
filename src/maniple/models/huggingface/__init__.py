"""Models of the transformers library, described by a config.json. Importing this imports torch, but not transformers."""

from maniple.models.huggingface.workload import PREFIX, is_config, load_config

__all__ = ["PREFIX", "is_config", "load_config"]
