"""The first process of ours inside a jail: makes it ready, starts the stand-in worker in it, and stays.

It stays when the worker dies, because the whole jail dies with its first process: a test that kills a worker looks at
what the worker leaves behind. Where the tests run as root it alone keeps that user; everything else in the jail is an
ordinary one. It is never the object of a test.

    keeper.py <the worker's user: own | user | root> <uid> <descriptor: the worker's environment as a line of JSON, and
    then an end when the jail shall end>

own: the user of the tests. user: an ordinary user with that number, which needs root. root: root of a user namespace,
whose users are that number and the 65,535 after it; it can do there what root can do, and outside of it nothing.
"""

import ctypes
import fcntl
import json
import os
import pty
import socket
import struct
import sys
import sysconfig
import termios
from pathlib import Path

METADATA_ADDRESS = "169.254.169.254"
"""Where clouds serve a machine's keys. In a jail it is an address of the loopback device."""
FOLDER = Path("/srv/worker")
USERS = 65536
CLONE_NEWUSER = 0x10000000
SIOCSIFADDR = 0x8916
MS_NOSUID_NODEV_NOEXEC = 0xE


def main() -> None:
    who, uid, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    environment = json.loads(read_line(until))
    if os.getuid() == 0:
        add_metadata_address()
        mount_proc()
        os.chown(FOLDER, uid, uid)
    terminal, slave = pty.openpty()
    apart, go = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(terminal)
        os.close(until)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        if who == "root":
            enter_user_namespace(apart[1], go[0])
        if who != "own":
            become_user(0 if who == "root" else uid)
        become_worker(environment)
    if who == "root":
        os.read(apart[0], 1)
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{worker}/{kind}").write_text(f"0 {uid} {USERS}\n")
        os.write(go[1], b"x")
    os.close(slave)
    _, status = os.waitpid(worker, 0)
    os.write(1, f'{{"worker_ended": {status}}}\n'.encode())
    while os.read(until, 1):
        continue


def read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(descriptor, 1)
    return line


def add_metadata_address() -> None:
    """Adds an address to the loopback device, so that packets to the address stay on this machine."""
    request = struct.pack("16sH2s4s8s", b"lo:1", socket.AF_INET, b"", socket.inet_aton(METADATA_ADDRESS), b"")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFADDR, request)


def mount_proc() -> None:
    """Bubblewrap covers parts of /proc. With those covered the kernel refuses to mount another /proc further in."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID_NODEV_NOEXEC, None) != 0:
        raise OSError(ctypes.get_errno(), "mounting /proc")


def enter_user_namespace(apart: int, go: int) -> None:
    """Until the parent, who may, has given it its users."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "a user namespace")
    os.write(apart, b"x")
    os.read(go, 1)


def become_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def become_worker(environment: dict[str, str]) -> None:
    """Never returns. The worker has a controlling terminal, as if a person had started it by hand."""
    python = make_environment(FOLDER / "venv")
    os.execve(python, [python, "-m", "tests.kit.jail.stand_in_worker"], environment)  # noqa: S606 - no shell is meant


def make_environment(folder: Path) -> str:
    """A virtual environment that belongs to the worker's user, as on many machines: a tool could write to it. Its
    packages are those of the tests. Returns its interpreter."""
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path.cwd()}\n")
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.symlink_to(interpreter)
    return str(python)


if __name__ == "__main__":
    main()
