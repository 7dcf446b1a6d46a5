"""JSON over HTTP, decoding of untrusted input, the Hugging Face hub, stopwatches, shipped files."""
