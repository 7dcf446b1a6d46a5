"""Constants that a worker of the sandbox shares with the process that starts it."""

WORKSPACE = "/snippet"  # where a snippet's own tmpfs is mounted; /tmp and /dev/shm lead to its `tmp`
SNIPPET_ID = 1000  # user and group of a snippet; `kernel` explains the ids
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")  # not zero: mapped, it is memory that none counts
LINKS = {"/tmp": f"{WORKSPACE}/tmp", "/dev/shm": f"{WORKSPACE}/tmp"}
ROOT_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL")  # a worker of root's; others the first
EXCEPTION_EXIT = 97  # the exit code of a snippet that raised
FLOOD_BYTES = 1_000_000  # of output; more ends the snippet
