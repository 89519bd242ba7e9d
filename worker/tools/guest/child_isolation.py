"""Isolates the process of one tool call before it runs any foreign code.

It is loaded by path into an interpreter that has only the standard library. With namespaces (tier 1) a call sees no
other process, and can write only to its own `/tmp` in memory. Without them (tier 2) landlock leaves it one directory of
the machine. Every function raises `OSError`, because a call must not begin without its whole isolation.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import struct

TYPE_CHECKING = False  # typing takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SECCOMP: Any = importlib.import_module("child_seccomp")
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC_WITH_LOCK = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock during a call, which a fork needs."""

SCRATCH = "/tmp"  # noqa: S108 - inside a mount namespace of the call's own
TOOL_UID = 1000
"""The user that a tool sees in its own namespace. Outside, the user is the zygote's."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_GET_TID_ADDRESS = 1, 4, 24, 38, 40
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000,
)  # fmt: skip
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x200000, 0x1000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
CLONE = {"x86_64": 56, "aarch64": 220}
LAST_CAPABILITY = 63
CAPABILITY_VERSION = 0x20080522

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
RULESET_VERSION, RULE_PATH_BENEATH, RULE_NET_PORT = 1, 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SYM, REFER, TRUNCATE = (
    1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12, 1 << 13, 1 << 14,
)  # fmt: skip
CHANGE = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
FOR_FILES = READ_FILE | WRITE_FILE | TRUNCATE
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""By landlock's version: all rights that its rulesets can refuse."""
NET_SINCE, SCOPES_SINCE = 4, 6
ALL_TCP, CONNECT_TCP, ALL_SCOPES = 3, 2, 3
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def become_user(user: list[int] | None) -> None:
    """Drops root for good, before the first call."""
    if user is not None:
        uid, gid = user
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        if os.getuid() != uid or os.geteuid() != uid:
            raise PermissionError("the tools' user was not taken")


def die_with_parent(parent: int) -> None:
    """Makes the kernel send SIGKILL when the parent's thread ends. Call it after the last change of user, which resets
    this setting. `parent`: its process id; 0 if that is not visible from here."""
    SECCOMP.control(LIBC, PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)


def fork_apart() -> int:
    """Forks into new namespaces: users, processes, mounts, host names, System V objects. It is one system call, so that
    the child is the first process of its namespace and a direct child of the zygote."""
    flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
    address = ctypes.c_ulong()
    if LIBC.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) == 0:
        # The C library caches the thread's id, for locks with owners. As after its own fork, the kernel has to write
        # the new id there.
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    machine = os.uname().machine
    stack_and_thread = (0, 0, address, 0) if machine == "x86_64" else (0, 0, 0, address)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = LIBC_WITH_LOCK.syscall(
        ctypes.c_long(CLONE[machine]), ctypes.c_ulong(flags | signal.SIGCHLD), *map(as_long, stack_and_thread)
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        number = ctypes.get_errno()
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(number, f"clone: {os.strerror(number)}")
    return pid


def as_long(value: Any) -> Any:
    return value if isinstance(value, ctypes.c_ulong) else ctypes.c_ulong(value)


def stand_apart(proc: int, uid: int, gid: int, scratch_bytes: int, run: tuple[str, str, str] | None) -> None:
    """Sets up the child of `fork_apart`: its own user, an empty `/tmp` in memory, and no capabilities.

    `proc`: a descriptor of the machine's `/proc`, which is mounted nowhere in the jail. `uid`, `gid`: the zygote's.
    `run`: the arguments of `show_run_folder`; None: the jail has no such folders.
    """
    SECCOMP.control(LIBC, PR_SET_DUMPABLE, 1)  # otherwise the maps belong to root
    for name, text in (("setgroups", "deny"), ("uid_map", f"{TOOL_UID} {uid} 1"), ("gid_map", f"{TOOL_UID} {gid} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    SECCOMP.control(LIBC, PR_SET_DUMPABLE, 0)
    mount("", "/", "", MS_PRIVATE | MS_REC, "")
    mount(
        "tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"size={scratch_bytes},nr_inodes=16384,mode=0700"
    )
    if run:
        show_run_folder(*run)
    os.chdir(SCRATCH)
    for capability in range(LAST_CAPABILITY + 1):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # an error: the kernel has fewer
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    checked(LIBC.capset(header, bytes(24)), "capset")


def show_run_folder(folders: str, name: str, place: str) -> None:
    """Mounts the run's folder `name` of `folders` at `place`, and hides the folders of other runs."""
    apart = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount(f"{folders}/{name}", place, "", MS_BIND, "")
    mount("", place, "", MS_BIND | MS_REMOUNT | apart, "")
    mount("tmpfs", folders, "tmpfs", MS_RDONLY | apart, "size=4096,nr_inodes=2,mode=0")


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    arguments = [text.encode() or None for text in (source, target, kind, options)]
    done = LIBC.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3])
    checked(done, f"mount {target}")


def close_off(
    *, readable: list[str], writable: list[str], refuse_metadata: bool, proxy_port: int, executable: Sequence[str] = ()
) -> None:
    """Applies landlock and seccomp, which no later code can undo. `writable`: the only writable directories.
    `proxy_port`: the only port to connect to; 0: none. `executable`: the files of the one program that this process may
    execute."""
    SECCOMP.control(LIBC, PR_SET_NO_NEW_PRIVS, 1)
    restrict(readable, writable, executable, proxy_port)
    SECCOMP.install(
        LIBC, refuse_metadata=refuse_metadata, becomes_program=bool(executable), has_network=bool(proxy_port)
    )


def landlock_version() -> int:
    """Returns landlock's version. 0 or less: this kernel has no landlock, or it is switched off."""
    return LIBC.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), RULESET_VERSION)


def restrict(readable: list[str], writable: list[str], executable: Sequence[str], proxy_port: int) -> None:
    version = landlock_version()
    if version < 1:
        raise OSError("this kernel has no landlock")
    files = FILE_RIGHTS[max(known for known in FILE_RIGHTS if known <= version)]
    net = ALL_TCP if version >= NET_SINCE else 0
    scopes = ALL_SCOPES if version >= SCOPES_SINCE else 0
    size = 24 if version >= SCOPES_SINCE else 16 if version >= NET_SINCE else 8
    described = struct.pack("QQQ", files, net, scopes)[:size]
    ruleset = LIBC.syscall(CREATE_RULESET, described, ctypes.c_size_t(size), 0)
    checked(ruleset, "landlock_create_ruleset")
    for path in readable:
        allow(ruleset, path, (READ_FILE | READ_DIR) & files)
    for path in executable:
        allow(ruleset, path, (READ_FILE | EXECUTE) & files)
    for path in DEVICES:
        allow(ruleset, path, FOR_FILES & files)
    for path in writable:
        allow(ruleset, path, (READ_FILE | READ_DIR | CHANGE) & files)
    if proxy_port and net:
        rule = struct.pack("=QQ", CONNECT_TCP, proxy_port)
        checked(LIBC.syscall(ADD_RULE, ruleset, RULE_NET_PORT, rule, 0), "landlock_add_rule of a port")
    checked(LIBC.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib loads slowly
        rights &= FOR_FILES | EXECUTE
    rule = struct.pack("=Qi", rights, place)
    checked(LIBC.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
    os.close(place)


def checked(answer: int, what: str) -> None:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
