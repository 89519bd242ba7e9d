"""Builds a seccomp filter for this machine's processor that refuses system calls which a tool may not make.

It is loaded by path into an interpreter that has only the standard library. The filter returns EPERM, so that a tool
gets an ordinary `PermissionError`, or ENOSYS if the C library then uses another call. Numbers are those of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

X86_64, AARCH64 = "x86_64", "aarch64"
AUDIT_ARCHITECTURE = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
X32_BIT = 0x40000000
LAST_KNOWN = 450
"""The filter answers newer system calls with ENOSYS, as an older kernel would, because they may be harmful."""

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Other processes, also those of the same user.
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "setsid": (112, 157),
    "setpgid": (109, 154), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "kcmp": (312, 272), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    # Sockets (and OUTGOING). Connected pairs stay allowed, because asyncio needs them.
    "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # Resources that all processes of a machine, or of a user, share in one quota: requests of asynchronous I/O.
    # (`sendmsg` is above for the same reason: descriptors in flight count against the user's other processes, too.)
    "io_setup": (206, 0), "io_destroy": (207, 1), "io_submit": (209, 2), "io_cancel": (210, 3),
    "io_getevents": (208, 4), "io_pgetevents": (333, 292),
    # Namespaces and mounts.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    # Memory that the limit of address space does not count, and memory that outlives a process.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "shmdt": (67, 197), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185), "mlock": (149, 228), "mlock2": (325, 284),
    "mlockall": (151, 230), "remap_file_pages": (216, 234), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # The kernel itself, and those of its parts that have had most vulnerabilities.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "create_module": (174, None), "swapon": (167, 224),
    "swapoff": (168, 225), "query_module": (178, None), "reboot": (169, 142), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "personality": (135, 92), "vhangup": (153, 58), "uselib": (134, None), "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18), "_sysctl": (156, None), "sysfs": (139, None), "ustat": (136, None),
    # Filters and rulesets: each thread may have its own, in memory that no limit counts.
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # Access to files by other means than their names, and calls that slow the whole machine down.
    "mknod": (133, None), "mknodat": (259, 33), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "sync": (162, 81), "syncfs": (306, 267),
}  # fmt: skip
"""Name → number on x86-64, number on aarch64."""

OUTGOING: dict[str, tuple[int, int]] = {"socket": (41, 198), "connect": (42, 203)}
"""Refused unless the call has a network; it may then connect by TCP over IPv4."""

METADATA: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
    "futimesat": (261, None), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "truncate": (76, 45),
}  # fmt: skip
"""Changes of owner, mode and times of files, which landlock does not cover. Refused if a tool shares the machine's
files."""

FOR_PROGRAMS = frozenset({"execve"})
"""Allowed for a call that executes another program. Landlock decides which program that is."""

LOOKED_INTO: dict[str, tuple[int, int]] = {
    "clone": (56, 220), "clone3": (435, 435), "socketpair": (53, 199), "ioctl": (16, 29), "prctl": (157, 167),
    "prlimit64": (302, 261), "kill": (62, 129), "tgkill": (234, 131), "fcntl": (72, 25), "sendto": (44, 206),
    "setsockopt": (54, 208), "mmap": (9, 222), "close_range": (436, 436),
}  # fmt: skip
"""Refused or allowed by their arguments."""

CLONE_THREAD, CLONE_FILES = 0x10000, 0x400
UNSHARES_FILES = (2, 6)  # by `close_range`
CLONE_NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
AF_UNIX, SOCK_STREAM, SOCKET_TYPE_MASK = 1, 1, 0xF
AF_INET, IPPROTO_TCP, SOL_SOCKET = 2, 6, 1
MSG_FASTOPEN = 0x20000000
"""Connects and sends in one call, which landlock does not check."""
TCP_OPTIONS = (1, 4, 5, 6, 12, 18)
"""No delay, keep-alive (three), quick acknowledgement, user timeout."""
SOCKET_FILTERS = (26, 50, 51, 52)
"""They load a tool's programs into the kernel."""
SOCKET_BUFFERS = (7, 8, 32, 33)
"""They set how much of the kernel's memory, which the call's limit does not count, a socket may use."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
FIOSETOWN, SIOCSPGRP, F_SETOWN, F_SETSIG, F_SETOWN_EX = 0x8901, 0x8902, 8, 10, 15
"""They make a descriptor send any signal, SIGKILL too, to any process."""
MAP_SHARED, MAP_GROWSDOWN = 0x1, 0x100
"""Memory that the limit of data does not count."""
F_SETLEASE, F_NOTIFY = 1024, 1026
"""A lease makes every process that opens the file wait, up to a minute, in all jails. `F_NOTIFY` watches folders."""
F_SETPIPE_SZ = 1031
"""It enlarges a pipe in the kernel's memory, as `SOCKET_BUFFERS` do for sockets."""
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 1, 38, 22, 2

LOAD, JUMP_EQUAL, JUMP_GREATER, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
ALLOW, KILL_PROCESS, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = ERROR | errno.EPERM, ERROR | errno.ENOSYS
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16


class Filter:
    """A BPF program, written from top to bottom. Each method's code falls through for other system calls."""

    def __init__(self, machine: str, own_pid: int) -> None:
        self._machine = machine
        self._own_pid = own_pid
        self._code: list[bytes] = []

    def program(self, *, refuse_metadata: bool, becomes_program: bool = False, has_network: bool = False) -> bytes:
        self._only_this_architecture()
        allowed = FOR_PROGRAMS if becomes_program else frozenset[str]()
        refused = [numbers for name, numbers in REFUSED.items() if name not in allowed]
        refused += [*(METADATA.values() if refuse_metadata else ()), *(() if has_network else OUTGOING.values())]
        for numbers in refused:
            self._refuse(numbers[self._machine == AARCH64], EPERM)
        if becomes_program:
            self._private_memory_only()
        if has_network:
            self._tcp_only()
            self._plain_options_only()
            self._no_fast_open()
        else:
            # Options enlarge a pair's buffers in the kernel's memory, which the call's limit does not count.
            self._refuse(self._number("setsockopt"), EPERM)
        self._refuse(self._number("clone3"), ENOSYS)  # a filter cannot read its arguments; libraries fall back to clone
        self._threads_only()
        self._stream_pairs_only()
        self._refuse_values("ioctl", (TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP))
        self._refuse_values("fcntl", (F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ))
        self._refuse_values("prctl", (PR_SET_PDEATHSIG, PR_SET_SECCOMP), argument=0)
        self._refuse_values("close_range", UNSHARES_FILES, argument=2)
        self._unless(self._number("prlimit64"), 0, 0)
        for name in ("kill", "tgkill"):
            self._unless(self._number(name), 0, self._own_pid)
        self._add(RETURN, ALLOW)
        return b"".join(self._code)

    def _only_this_architecture(self) -> None:
        self._load(ARCHITECTURE_AT)
        self._add(JUMP_EQUAL, AUDIT_ARCHITECTURE[self._machine], 1, 0)
        self._add(RETURN, KILL_PROCESS)
        self._load(NUMBER_AT)
        if self._machine == X86_64:
            self._add(JUMP_GREATER, X32_BIT - 1, 0, 1)
            self._add(RETURN, KILL_PROCESS)
        self._add(JUMP_GREATER, LAST_KNOWN, 0, 1)
        self._add(RETURN, ENOSYS)

    def _threads_only(self) -> None:
        self._add(JUMP_EQUAL, self._number("clone"), 0, 6)
        self._load_argument(0)
        self._add(JUMP_ANY_BIT, CLONE_NAMESPACES, 2, 0)
        self._add(JUMP_ANY_BIT, CLONE_THREAD, 0, 1)
        self._add(JUMP_ANY_BIT, CLONE_FILES, 1, 0)  # each table of open files has room for `RLIMIT_NOFILE` of its own
        self._add(RETURN, EPERM)
        self._add(RETURN, ALLOW)

    def _private_memory_only(self) -> None:
        """Refuses shared memory, because a limit of data, unlike one of address space, counts only private memory."""
        self._add(JUMP_EQUAL, self._number("mmap"), 0, 4)
        self._load_argument(3)
        self._add(JUMP_ANY_BIT, MAP_SHARED | MAP_GROWSDOWN, 0, 1)
        self._add(RETURN, EPERM)
        self._add(RETURN, ALLOW)

    def _stream_pairs_only(self) -> None:
        # A datagram socket of a pair can be connected to another address, a stream cannot.
        self._add(JUMP_EQUAL, self._number("socketpair"), 0, 7)
        self._load_argument(0)
        self._add(JUMP_EQUAL, AF_UNIX, 0, 3)
        self._load_argument(1)
        self._add(AND, SOCKET_TYPE_MASK)
        self._add(JUMP_EQUAL, SOCK_STREAM, 1, 0)
        self._add(RETURN, EPERM)
        self._add(RETURN, ALLOW)

    def _tcp_only(self) -> None:
        self._add(JUMP_EQUAL, OUTGOING["socket"][self._machine == AARCH64], 0, 10)
        self._load_argument(0)
        self._add(JUMP_EQUAL, AF_INET, 0, 6)
        self._load_argument(1)
        self._add(AND, SOCKET_TYPE_MASK)
        self._add(JUMP_EQUAL, SOCK_STREAM, 0, 3)
        self._load_argument(2)
        self._add(JUMP_EQUAL, 0, 2, 0)
        self._add(JUMP_EQUAL, IPPROTO_TCP, 1, 0)  # landlock does not check other protocols with streams
        self._add(RETURN, EPERM)
        self._add(RETURN, ALLOW)

    def _plain_options_only(self) -> None:
        """Allows a socket's common options of TCP, and its general ones except filters and sizes of buffers."""
        kinds = (*SOCKET_FILTERS, *SOCKET_BUFFERS)
        allowed, refused = len(TCP_OPTIONS), len(kinds)
        self._add(JUMP_EQUAL, self._number("setsockopt"), 0, 8 + allowed + refused)
        self._load_argument(1)
        self._add(JUMP_EQUAL, SOL_SOCKET, 3 + allowed, 0)
        self._add(JUMP_EQUAL, IPPROTO_TCP, 0, 1 + allowed)
        self._load_argument(2)
        for position, option in enumerate(TCP_OPTIONS):
            self._add(JUMP_EQUAL, option, allowed - position + 1 + refused, 0)
        self._add(RETURN, EPERM)
        self._load_argument(2)
        for position, option in enumerate(kinds):
            self._add(JUMP_EQUAL, option, refused - position, 0)
        self._add(RETURN, ALLOW)
        self._add(RETURN, EPERM)

    def _no_fast_open(self) -> None:
        self._add(JUMP_EQUAL, self._number("sendto"), 0, 4)
        self._load_argument(3)
        self._add(JUMP_ANY_BIT, MSG_FASTOPEN, 0, 1)
        self._add(RETURN, EPERM)
        self._add(RETURN, ALLOW)

    def _refuse_values(self, name: str, values: tuple[int, ...], argument: int = 1) -> None:
        """Refuses these values of an argument."""
        self._add(JUMP_EQUAL, self._number(name), 0, len(values) + 3)
        self._load_argument(argument)
        for position, value in enumerate(values):
            self._add(JUMP_EQUAL, value, len(values) - position, 0)
        self._add(RETURN, ALLOW)
        self._add(RETURN, EPERM)

    def _unless(self, number: int, argument: int, value: int) -> None:
        self._add(JUMP_EQUAL, number, 0, 4)
        self._load_argument(argument)
        self._add(JUMP_EQUAL, value & 0xFFFFFFFF, 1, 0)
        self._add(RETURN, EPERM)
        self._add(RETURN, ALLOW)

    def _refuse(self, number: int | None, answer: int) -> None:
        if number is not None:
            self._add(JUMP_EQUAL, number, 0, 1)
            self._add(RETURN, answer)

    def _number(self, name: str) -> int:
        return LOOKED_INTO[name][self._machine == AARCH64]

    def _load(self, offset: int) -> None:
        self._add(LOAD, offset)

    def _load_argument(self, index: int) -> None:
        """Loads the lower half: to the kernel all checked arguments have 32 bits."""
        self._load(ARGUMENTS_AT + 8 * index)

    def _add(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append(struct.pack("=HBBI", code, if_true, if_false, value))


def is_known(machine: str) -> bool:
    """Returns whether this module has the numbers of this processor."""
    return machine in AUDIT_ARCHITECTURE


def install(
    libc: ctypes.CDLL, *, refuse_metadata: bool, becomes_program: bool = False, has_network: bool = False
) -> None:
    """Applies the filter to this thread, which must be the only one, for good. Raises `OSError`."""
    written = Filter(os.uname().machine, os.getpid())
    code = written.program(refuse_metadata=refuse_metadata, becomes_program=becomes_program, has_network=has_network)
    instructions = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(instructions))
    program = ctypes.create_string_buffer(described, len(described))
    control(libc, PR_SET_NO_NEW_PRIVS, 1)
    control(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def control(libc: ctypes.CDLL, option: int, *values: int) -> None:
    """Calls `prctl`. Raises `OSError`."""
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(ctypes.c_int(option), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
