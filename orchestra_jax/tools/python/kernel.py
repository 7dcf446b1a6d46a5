"""Calls of the Linux kernel that the sandbox's worker makes: mounts, capabilities, the filter of system calls.

Stdlib only, through ctypes. Every function raises OSError with the call's name where the kernel refuses.

Ids: inside, a snippet is user 1000. Where the sandbox is root's, 1000 is `nobody` outside and the worker keeps the id
of root: the two cannot touch each other, and the limit on processes, which the kernel does not apply to root, holds. An
ordinary user can map only the own id, so worker and snippet share it; what that allows, the system call filter forbids.
"""

import ctypes
import os
import signal
import struct

from orchestra_jax.tools.python import seccomp
from orchestra_jax.tools.python.common import ROOT_CAPABILITIES, SNIPPET_ID, WORKSPACE

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MNT_DETACH = 2

_CAPABILITY_BITS = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_ADMIN": 21}
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_EPERM = 1

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library; raise OSError if it returns -1."""
    result: int = getattr(_libc, name)(*arguments)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    try:
        call("mount", *encoded, ctypes.c_ulong(flags), options.encode() or None)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def seal_worker() -> int:
    """Take from this process, the first of the namespaces, what it no longer needs.

    Returns:
        A descriptor of /proc, the only way to it from here on.
    """
    seccomp.machine()
    if os.getpid() != 1:  # it will end all that it sees after each snippet
        raise OSError(_EPERM, "the worker is not the first process of a PID namespace")
    call("unshare", _CLONE_NEWNET)  # bubblewrap's has a loopback interface that is up; this one has not
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    call("umount2", b"/proc", MNT_DETACH)
    die_with_parent()
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    _set_capabilities(ROOT_CAPABILITIES if os.getuid() == 0 else ROOT_CAPABILITIES[:1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process gets no signal that it has no handler for
    return processes


def die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Make descendants of this process that lose their parent its children."""
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep_capabilities() -> None:
    """Let the program that this process becomes keep the worker's capabilities; as root it keeps them anyway."""
    if os.getuid():
        _set_capabilities(ROOT_CAPABILITIES[:1], inherited=True)
        for name in ROOT_CAPABILITIES[:1]:
            call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAPABILITY_BITS[name], 0, 0)


def _set_capabilities(names: tuple[str, ...], inherited: bool = False) -> None:
    bits = sum(1 << _CAPABILITY_BITS[name] for name in names)
    header = struct.pack("=Ii", 0x20080522, 0)
    call("capset", header, struct.pack("=6I", bits, bits, bits if inherited else 0, 0, 0, 0))


def mount_workspace(size_mb: int, files: int) -> None:
    """Mount an empty tmpfs for one snippet."""
    options = f"size={size_mb}m,nr_inodes={files},mode=0700,uid={SNIPPET_ID},gid={SNIPPET_ID}"
    mount("tmpfs", WORKSPACE, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def remove_workspace() -> None:
    """Unmount the workspace; its memory is free once no process uses it."""
    call("umount2", WORKSPACE.encode(), MNT_DETACH)


def confine_snippet(filter_program: bytes) -> None:
    """Take the last step of a snippet's process: its own user, no capability, a filter of system calls."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(SNIPPET_ID, SNIPPET_ID, SNIPPET_ID)
        os.setresuid(SNIPPET_ID, SNIPPET_ID, SNIPPET_ID)
    _set_capabilities(())
    take_filter(filter_program)


def take_filter(filter_program: bytes) -> None:
    """Let this process and all that it starts make only the system calls that a BPF program allows."""
    program = ctypes.create_string_buffer(filter_program, len(filter_program))
    fprog = struct.pack("@HP", len(filter_program) // 8, ctypes.addressof(program))
    call("prctl", _PR_SET_SECCOMP, 2, fprog, 0, 0)
