"""The script of a tool call without a zygote: a watcher process, and its child process, which runs the tool.

It uses only the standard library, because the interpreter starts as `python -I -S` and finds neither this project nor
any installed package. The watcher runs no foreign code, so whatever the tool does, it can guarantee that the call ends
when the worker dies, and that no process of the tool outlives the call. It adopts every orphan of the tool (child
subreaper), so it also finds processes that escaped by `setsid`.

    worker --SIGTERM--> watcher --SIGTERM--> tool (ToolCancelled in its frame) --grace over--> SIGKILL for all
    worker dies ------> watcher (SIGHUP by PDEATHSIG) -----------------------------------> SIGKILL for all at once
    watcher dies ---------------------------> tool (SIGKILL by PDEATHSIG)

PDEATHSIG follows the parent's *thread*: the worker starts calls from the thread of its event loop, which must live as
long as they do.
"""

import ctypes
import importlib
import os
import signal
import sys
import time

WATCHED = {signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM}
LAST_ROUNDS = 400
USER_AT, PROGRAM_AT = 4, 5
"""Places of arguments: `uid:gid` of the call's user, empty for the worker's own; and the JSON for `child_node.run`,
which Python calls do not have."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    result_fd, worker, grace_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    user = [int(number) for number in sys.argv[USER_AT].split(":") if number]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    signal.signal(signal.SIGCHLD, noted)
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    die_with_parent(worker, signal.SIGHUP)
    watcher = os.getpid()
    tool = os.fork()
    if tool == 0:
        become_tool(result_fd, watcher, user)
    os.close(result_fd)
    os.close(0)
    os._exit(watch(tool, grace_s))


def noted(_signal: int, _frame: object) -> None:
    """Does nothing, but some systems drop a blocked SIGCHLD without a handler."""


def process_control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int, with_signal: int) -> None:
    process_control(PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:  # the parent died before the call of prctl
        os._exit(1)


def become_tool(result_fd: int, watcher: int, user: list[int]) -> None:
    """Loads and runs the part that runs foreign code. Signals stay blocked until it can handle them. Never returns."""
    try:
        os.setpgid(0, 0)
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib loads slowly
        program = [importlib.import_module("json").loads(text) for text in sys.argv[PROGRAM_AT:]]
        if program:
            child = importlib.import_module("child_node")
        else:
            child = importlib.import_module("child_call")
            importlib.import_module("child_objects")
        del sys.path[0]
        become_user(user)
        die_with_parent(watcher, signal.SIGKILL)  # after the change of user, which resets it
        child.run(*program, result_fd, WATCHED)
    finally:
        os._exit(1)


def become_user(user: list[int]) -> None:
    """Drops root for good. `user`: the ids of the user and its group; empty: no change.

    Our modules are loaded before, because this user may not be able to read them. The watcher stays root, so that the
    tool cannot signal it.
    """
    if user:
        uid, gid = user
        os.setgroups([])
        os.setregid(gid, gid)
        os.setreuid(uid, uid)
        if os.getuid() != uid or os.geteuid() != uid:
            raise PermissionError("the tools' user was not taken")


def watch(tool: int, grace_s: float) -> int:
    """Waits for the tool's process, forwards a cancellation, and kills all that is left. Returns the exit status."""
    status: int | None = None
    asked = False
    while status is None:
        caught = signal.sigwait(WATCHED)
        if caught == signal.SIGCHLD:
            status = reap(tool)
            continue
        if caught != signal.SIGTERM:
            break
        if not asked:
            asked = True
            os.kill(tool, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, max(grace_s, 0.001))
    kill_everything(tool)
    return exit_status(status)


def exit_status(status: int | None) -> int:
    """Converts a wait status to a shell's exit status: 128 + n for signal n."""
    if status is None:
        return 128 + signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def reap(tool: int) -> int | None:
    """Reaps dead children, up to the tool. Returns the tool's wait status if it is dead."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == tool:
            return status
        if pid == 0:
            return None


def kill_everything(tool: int) -> None:
    """Kills the tool's group and all its descendants. The kernel, not a list, decides whether any is left."""
    kill_all([-tool])
    for _ in range(LAST_ROUNDS):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        kill_all(descendants(os.getpid()))
        time.sleep(0.002)


def kill_all(pids: list[int]) -> None:
    """Kills processes; a negative number is a whole group. It ignores those that have ended already."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def processes() -> list[tuple[int, int, int]]:
    """Returns (pid, parent, session) of every process; an empty list if the system has no /proc."""
    found: list[tuple[int, int, int]] = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:  # noqa: PTH112, PTH208 - pathlib loads slowly
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123 - as above
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        found.append((int(entry), int(fields[1]), int(fields[3])))
    return found


def descendants(root: int) -> list[int]:
    parents = {pid: parent for pid, parent, _ in processes()}
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sorted(family - {root})


if __name__ == "__main__":
    main()
