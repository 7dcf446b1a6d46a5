"""Exit statuses of commands."""

USAGE_ERROR, HALTED, DISK_FULL, INTERRUPTED = 2, 3, 5, 130
