"""JSON over HTTP, untrusted input, the Hugging Face hub, stopwatches, files and folders that are whole or go away."""
