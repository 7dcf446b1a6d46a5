"""The filters of system calls that hold a snippet, and the numbers of those that Python has no function for."""

import os
import struct

PIVOT_ROOT, MOUNT_SETATTR = (155, 41), (442, 442)  # on each of the machines
_ENOSYS, _EPERM, _EAFNOSUPPORT = 38, 1, 97
_MACHINES = ("x86_64", "aarch64")  # the columns of the tables of system calls
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
# From Linux 6.8 on: statmount and listmount, which show the paths of this machine, and whatever comes after them. On
# x86_64 this also covers the 32-bit calls that share its architecture (from 0x40000000).
_FIRST_UNKNOWN = 457
_MMAP, _CLONE, _CLONE3, _PRLIMIT64, _SOCKET = (9, 222), (56, 220), (435, 435), (302, 261), (41, 198)
_CLONE_ANY = 0x7E020000  # every namespace that clone() can make
_SHARED, _ANONYMOUS = 0x01, 0x20
_FAMILIES = (1, 2, 10)  # unix, inet, inet6. Others (vsock to the hypervisor) may pass by the network namespace.
# Refused with EPERM. Most ask for a privilege that a snippet lacks; the filter does not depend on that.
_REFUSED_TO_SNIPPETS = {"mount": (165, 40), "umount2": (166, 39)}  # the worker mounts workspaces
_REFUSED = {
    # mounts and namespaces
    "pivot_root": PIVOT_ROOT,
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": MOUNT_SETATTR,
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
    "vmsplice": (278, 75),
    # what all users of the machine share: a few, and who opens which program
    "io_setup": (206, 0),
    "inotify_init1": (294, 26),
    "inotify_init": (253, 26),
    # ways into the kernel that no snippet needs
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
}

_Step = tuple[int, int, int, int]  # operation, jump where true, jump where false, operand
_LOAD, _AND, _EQUAL, _FROM, _BITS, _LEAVE = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument has 8 bytes, low ones first
_ALLOW = (_LEAVE, 0, 0, 0x7FFF0000)


def machine() -> int:
    """Return the column of this machine in a pair of numbers; raise OSError: it has none."""
    name = os.uname().machine
    if name not in _MACHINES:
        raise OSError(_ENOSYS, f"system calls of {name} are not known, only those of {' and '.join(_MACHINES)}")
    return _MACHINES.index(name)


def worker_filter() -> bytes:
    """Return the BPF program of the worker, which snippets inherit: it refuses what the head of this file lists.

    For each filter that it takes the kernel tries every system call, 0.1 ms with this one: so once, not per snippet.

    What is newer than the table is said not to exist, and so are calls of 32 bits, and the new interface to clone(),
    whose flags cannot be seen: the C library then takes the old one, which may make no namespace. A process may set its
    own limits only. Memory may be shared through files, which have a limit, but not without: what no process maps any
    longer could not be counted.
    """
    column = machine()
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT_ARCH[column]),
        _refuse(_ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_FROM, 0, 1, _FIRST_UNKNOWN),
        _refuse(_ENOSYS),
        *_refuse_all(_REFUSED),
    ]
    program += [(_EQUAL, 0, 1, _CLONE3[column]), _refuse(_ENOSYS)]
    either = _SHARED | _ANONYMOUS
    program += _when(_MMAP[column], 3, [(_AND, 0, 0, either), (_EQUAL, 0, 1, either), _refuse(_EPERM), _ALLOW])
    program += _when(_CLONE[column], 0, [(_BITS, 0, 1, _CLONE_ANY), _refuse(_EPERM), _ALLOW])
    program += _when(_PRLIMIT64[column], 0, [*_if_one_of(0), _refuse(_EPERM)])
    program += _when(_SOCKET[column], 0, [*_if_one_of(*_FAMILIES), _refuse(_EAFNOSUPPORT)])
    return _packed([*program, _ALLOW])


def snippet_filter() -> bytes:
    """Return the BPF program of a snippet, on top of the worker's."""
    return _packed([(_LOAD, 0, 0, _NUMBER), *_refuse_all(_REFUSED_TO_SNIPPETS), _ALLOW])


def _packed(program: list[_Step]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def _refuse_all(calls: dict[str, tuple[int, int]]) -> list[_Step]:
    return [step for call in calls.values() for step in ((_EQUAL, 0, 1, call[machine()]), _refuse(_EPERM))]


def _refuse(error: int) -> _Step:
    return _LEAVE, 0, 0, 0x00050000 | error


def _when(call: int, argument: int, steps: list[_Step]) -> list[_Step]:
    """Return the steps for one call, which begin with the low half of an argument loaded and end the program."""
    return [(_EQUAL, 0, len(steps) + 1, call), (_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *steps]


def _if_one_of(*values: int) -> list[_Step]:
    return [step for value in values for step in ((_EQUAL, 0, 1, value), _ALLOW)]
