"""Exit statuses of commands."""

USAGE_ERROR, DISK_FULL, INTERRUPTED = 2, 5, 130
