"""The data of the paper's run, fetched or taken from a folder, and checked before a run begins."""
