"""Train orchestrators: small language models that solve tasks by calling tools and bigger models."""

__version__ = "0.1.0"
