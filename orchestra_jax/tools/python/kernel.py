"""What the sandbox's worker asks of the Linux kernel: namespaces, mounts, capabilities, a filter of system calls.

Stdlib only, through ctypes. Every function raises OSError with the call's name where the kernel refuses.

Ids: inside, a snippet is user 1000. Where the sandbox is root's, 1000 is `nobody` outside and the worker keeps the id
of root: the two cannot touch each other, and the limit on processes, which the kernel does not apply to root, holds. An
ordinary user can map only the own id, so worker and snippet share it; what that allows, the system call filter forbids.
"""

import ctypes
import os
import signal
import struct

WORKSPACE = "/snippet"  # where a snippet's own tmpfs is mounted; /tmp and /dev/shm lead to its `tmp`
SNIPPET_ID = 1000
_NOBODY = 65534
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LINKS = {"/tmp": f"{WORKSPACE}/tmp", "/dev/shm": f"{WORKSPACE}/tmp"}
ROOT_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL")  # a worker of root's; others the first

_CAPABILITY_BITS = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_ADMIN": 21}
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWPID, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWCGROUP = 0x00020000, 0x04000000, 0x02000000
_CLONE_ANY = 0x7E020000  # every namespace that clone() can make
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_MACHINES = ("x86_64", "aarch64")  # the columns of the tables of system calls
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_X32 = 0x40000000  # system calls of the 32-bit ABI that share x86_64's architecture
_PIVOT_ROOT, _MOUNT_SETATTR = (155, 41), (442, 442)
_CLONE, _CLONE3, _PRLIMIT64, _SOCKET = (56, 220), (435, 435), (302, 261), (41, 198)
_FAMILIES = (1, 2, 10)  # unix, inet, inet6. Others (vsock to the hypervisor) may pass by the network namespace.
# Refused with EPERM. Most ask for a privilege that a snippet lacks; the filter does not depend on that.
_REFUSED = {
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": _PIVOT_ROOT,
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": _MOUNT_SETATTR,
    "unshare": (272, 97),
    "setns": (308, 268),
    # other processes: the worker, where it has the same user
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # what would outlive the snippet in the worker's namespaces
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # memory that no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # ways into the kernel that no snippet needs
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    result: int = getattr(_libc, name)(*arguments)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def _machine() -> int:
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(_ENOSYS, f"system calls of {machine} are not known, only those of {' and '.join(_MACHINES)}")
    return _MACHINES.index(machine)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    try:
        _call("mount", *encoded, ctypes.c_ulong(flags), options.encode() or None)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def _restrict_mount(target: str, attributes: int, flags: int = 0) -> None:
    wanted = struct.pack("=4Q", attributes, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns_fd
    _call("syscall", _MOUNT_SETATTR[_machine()], _AT_FDCWD, os.fsencode(target), flags, wanted, len(wanted))


def enter_user_namespace() -> None:
    """Where all capabilities are held, over nothing outside. Ids: see the head of this file."""
    user, group = os.getuid(), os.getgid()
    if user:
        _call("unshare", _CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{SNIPPET_ID} {user} 1")
        _write("/proc/self/gid_map", f"{SNIPPET_ID} {group} 1")
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
                    _write(f"/proc/{target}/{name}", f"0 0 1\n{SNIPPET_ID} {_NOBODY} 1")
                status = 0
        finally:
            os._exit(status)
    os.close(reader)
    try:
        _call("unshare", _CLONE_NEWUSER)
        os.write(writer, b"1")
    finally:
        os.close(writer)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError(_EPERM, f"uid_map: user {_NOBODY} cannot be mapped")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def enter_namespaces(root: str, shown: dict[str, str], links: dict[str, str]) -> None:
    """Own users, mounts, processes, network and IPC; returns in the first process of the new PID namespace.

    The calling process waits for that one and exits with it.

    Args:
        root: an empty directory, where the new root is built.
        shown: paths to make, with the paths that they show, read-only; a link is shown as a link.
        links: symbolic links to make, with their targets.
    """
    enter_user_namespace()
    _call("unshare", _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWCGROUP)
    init = os.fork()
    if init:
        os.closerange(0, 64)  # else the sandbox would not notice the death of the inner process
        os.waitpid(init, 0)
        os._exit(0)
    die_with_parent()
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
    for target, path in shown.items():
        _show(path, root + target, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    for path in DEVICES:
        _show(path, root + path, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NOEXEC)
    for link, target in links.items():
        os.symlink(target, root + link)
    for path in ("/proc", WORKSPACE):
        os.mkdir(root + path)
    _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chdir(root)
    _call("syscall", _PIVOT_ROOT[_machine()], b".", b".")
    _call("umount2", b".", _MNT_DETACH)  # the old root, which pivot_root put on top
    os.chdir("/")
    _restrict_mount("/", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)


def _show(path: str, target: str, attributes: int) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, target, None, _MS_BIND | _MS_REC)
    _restrict_mount(target, attributes, _AT_RECURSIVE)


def seal_worker() -> int:
    """In the first process of the namespaces: takes from this process what it no longer needs.

    Returns:
        A descriptor of /proc, the only way to it from here on.
    """
    _machine()
    if os.getpid() != 1:  # it will end all that it sees after each snippet
        raise OSError(_EPERM, "the worker is not the first process of a PID namespace")
    _call("unshare", _CLONE_NEWNET)  # bubblewrap's has a loopback interface that is up; this one has not
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    _call("umount2", b"/proc", _MNT_DETACH)
    die_with_parent()
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    _set_capabilities(ROOT_CAPABILITIES if os.getuid() == 0 else ROOT_CAPABILITIES[:1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process gets no signal that it has no handler for
    return processes


def die_with_parent() -> None:
    """This process is killed when its parent ends."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Descendants of this process that lose their parent become its children."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _set_capabilities(names: tuple[str, ...]) -> None:
    bits = sum(1 << _CAPABILITY_BITS[name] for name in names)
    header = struct.pack("=Ii", 0x20080522, 0)
    _call("capset", header, struct.pack("=6I", bits, bits, 0, 0, 0, 0))


def mount_workspace(size_mb: int, files: int) -> None:
    """An empty tmpfs for one snippet."""
    options = f"size={size_mb}m,nr_inodes={files},mode=0700,uid={SNIPPET_ID},gid={SNIPPET_ID}"
    _mount("tmpfs", WORKSPACE, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options)


def remove_workspace() -> None:
    """Its memory is free once no process uses it."""
    _call("umount2", WORKSPACE.encode(), _MNT_DETACH)


def confine_snippet(filter_program: bytes) -> None:
    """Last step of a snippet's process: its own user, no capability, the filter of system calls."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(SNIPPET_ID, SNIPPET_ID, SNIPPET_ID)
        os.setresuid(SNIPPET_ID, SNIPPET_ID, SNIPPET_ID)
    _set_capabilities(())
    program = ctypes.create_string_buffer(filter_program, len(filter_program))
    fprog = struct.pack("@HP", len(filter_program) // 8, ctypes.addressof(program))
    _call("prctl", _PR_SET_SECCOMP, 2, fprog, 0, 0)


def system_call_filter() -> bytes:
    """The BPF program of `confine_snippet`: every system call is allowed but those refused at the head of this file.

    32-bit system calls are refused. The new interface to clone() is said not to exist: its flags cannot be seen, and
    the C library then takes the old one, which may make no namespace. A process may set its own limits only.
    """
    machine = _machine()
    load, equal, greater, bits, leave = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF operations; operands are 32 bits wide
    number, architecture, first = 0, 4, 16  # offsets in struct seccomp_data
    allow = (leave, 0, 0, 0x7FFF0000)

    def refuse(error: int) -> tuple[int, int, int, int]:
        return leave, 0, 0, 0x00050000 | error

    def only(call: tuple[int, int], values: tuple[int, ...], error: int) -> list[tuple[int, int, int, int]]:
        """First arguments that are allowed for a call."""
        checks = [step for value in values for step in ((equal, 0, 1, value), allow)]
        return [(equal, 0, len(checks) + 2, call[machine]), (load, 0, 0, first), *checks, refuse(error)]

    program = [
        (load, 0, 0, architecture),
        (equal, 1, 0, _AUDIT_ARCH[machine]),
        refuse(_ENOSYS),
        (load, 0, 0, number),
        (greater, 0, 1, _X32),
        refuse(_ENOSYS),
    ]
    for call in _REFUSED.values():
        program += [(equal, 0, 1, call[machine]), refuse(_EPERM)]
    program += [(equal, 0, 1, _CLONE3[machine]), refuse(_ENOSYS)]
    program += [(equal, 0, 4, _CLONE[machine]), (load, 0, 0, first), (bits, 0, 1, _CLONE_ANY), refuse(_EPERM), allow]
    program += only(_PRLIMIT64, (0,), _EPERM)
    program += only(_SOCKET, _FAMILIES, _EAFNOSUPPORT)
    program.append(allow)
    return b"".join(struct.pack("=HBBI", *step) for step in program)
