"""Becomes another program inside namespaces of its own: what bubblewrap does, where it is not installed. A script.

    python namespaces.py user PROGRAM ...      # a user namespace only: before bubblewrap, where it is root's
    python namespaces.py all '{"shown": {}, "links": {}, "environment": {}}' PROGRAM ...

A refusal of the kernel is told on the socket at fd 0, in the words of the worker's protocol: {"refused": str}.
"""

import json
import os
import struct
import sys

from orchestra_jax.tools.python import common, kernel, seccomp

_NOBODY = 65534
_EPERM = 1
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWPID, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWCGROUP = 0x00020000, 0x04000000, 0x02000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
# The new root is built where every machine has a folder that shows no program, and only this process sees it there:
# nothing lies on the disk that a kill could leave.
_ROOT = "/proc"


def enter_user_namespace() -> None:
    """Enter a user namespace with all capabilities, over nothing outside. `kernel.py` explains the ids."""
    user, group = os.getuid(), os.getgid()
    if user:
        kernel.call("unshare", _CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{common.SNIPPET_ID} {user} 1")
        _write("/proc/self/gid_map", f"{common.SNIPPET_ID} {group} 1")
        return
    # Only a process that stayed outside may map more than one id.
    reader, writer = os.pipe()
    target = os.getpid()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(writer)
            if os.read(reader, 1):
                for name in ("uid_map", "gid_map"):
                    _write(f"/proc/{target}/{name}", f"0 0 1\n{common.SNIPPET_ID} {_NOBODY} 1")
                status = 0
        finally:
            os._exit(status)
    os.close(reader)
    try:
        kernel.call("unshare", _CLONE_NEWUSER)
        os.write(writer, b"1")
    finally:
        os.close(writer)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError(_EPERM, f"uid_map: user {_NOBODY} cannot be mapped")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def enter_namespaces(shown: dict[str, str], links: dict[str, str]) -> None:
    """Take users, mounts, processes, network and IPC of its own; return in the first process of the new PID namespace.

    The calling process waits for that one and exits with it.

    Args:
        shown: paths to make, with the paths that they show, read-only; a link is shown as a link.
    """
    enter_user_namespace()
    spaces = _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWCGROUP
    kernel.call("unshare", spaces)
    init = os.fork()
    if init:
        os.closerange(0, 64)  # else the sandbox would not notice the death of the inner process
        os.waitpid(init, 0)
        os._exit(0)
    kernel.die_with_parent()
    kernel.mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    kernel.mount("tmpfs", _ROOT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for target, path in shown.items():
        _show(path, _ROOT + target, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    for path in common.DEVICES:
        _show(path, _ROOT + path, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NOEXEC)
    for link, target in links.items():
        os.symlink(target, _ROOT + link)
    for path in ("/proc", common.WORKSPACE):
        os.mkdir(_ROOT + path)
    kernel.mount("proc", f"{_ROOT}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    os.chdir(_ROOT)
    kernel.call("syscall", seccomp.PIVOT_ROOT[seccomp.machine()], b".", b".")
    kernel.call("umount2", b".", kernel.MNT_DETACH)  # the old root, which pivot_root put on top
    os.chdir("/")
    _restrict("/", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)


def _show(path: str, target: str, attributes: int) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(path, target, None, _MS_BIND | _MS_REC)
    _restrict(target, attributes, _AT_RECURSIVE)


def _restrict(target: str, attributes: int, flags: int = 0) -> None:
    wanted = struct.pack("=4Q", attributes, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns_fd
    number = seccomp.MOUNT_SETATTR[seccomp.machine()]
    kernel.call("syscall", number, _AT_FDCWD, os.fsencode(target), flags, wanted, len(wanted))


def main() -> None:
    """Enter the namespaces, then become the program."""
    try:
        if sys.argv[1] == "user":
            enter_user_namespace()
            os.execv(sys.argv[2], sys.argv[2:])
        inside = json.loads(sys.argv[2])
        enter_namespaces(inside["shown"], inside["links"])
        kernel.keep_capabilities()
        os.execve(sys.argv[3], sys.argv[3:], inside["environment"])
    except OSError as error:
        os.write(0, json.dumps({"refused": str(error.strerror)}).encode())


if __name__ == "__main__":
    main()
