"""Train orchestrators: small language models that solve tasks by calling tools and bigger models."""

import os

__version__ = "0.2.0"

# transformers gives us tokenizers only, and would advise on every start to install PyTorch.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
