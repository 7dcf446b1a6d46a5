"""The rehearsal of a run: its own configuration on a small machine, with stand-ins for what a GPU and a provider are."""
