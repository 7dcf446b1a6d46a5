"""The command line of bubblewrap around a worker."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestra_jax.tools.python import common


def bubblewrap_command(
    shown: Mapping[str, str], links: Mapping[str, str], environment: Mapping[str, str], worker: Sequence[str]
) -> list[str]:
    """Return the command that runs a worker in namespaces where it sees only `shown`, read-only.

    Args:
        shown: paths inside with those of this machine.

    Raises:
        FileNotFoundError: bubblewrap is not installed.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError("bwrap is not installed")
    root = os.geteuid() == 0
    command = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not root:
        identity = str(common.SNIPPET_ID)
        command += ["--unshare-user", "--uid", identity, "--gid", identity]
    # The worker mounts each snippet's workspace; the snippet itself has no capability.
    for capability in common.ROOT_CAPABILITIES if root else common.ROOT_CAPABILITIES[:1]:
        command += ["--cap-add", capability]
    for folder in sorted({str(parent) for path in (*shown, *common.DEVICES) for parent in Path(path).parents} - {"/"}):
        command += ["--dir", folder]  # made for a mount they would be open to root only
    for target, path in shown.items():
        command += ["--symlink", os.readlink(path), target] if os.path.islink(path) else ["--ro-bind", path, target]
    for device in common.DEVICES:
        command += ["--dev-bind", device, device]
    for link, target in links.items():
        command += ["--symlink", target, link]
    command += ["--dir", common.WORKSPACE, "--proc", "/proc", "--remount-ro", "/", "--chdir", "/", "--as-pid-1"]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    return [*command, "--", *worker]
