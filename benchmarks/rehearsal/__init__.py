"""The rehearsal of a run: its configuration on a small machine, with stand-ins for GPUs and providers."""
