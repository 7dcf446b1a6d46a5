"""The pictures of a run that are files of their own."""
