"""The script that a tool call starts as: a process that watches, and below it the process that runs the tool.

It stands alone, because the interpreter starts as `python -I -S` and finds neither this project nor any installed
package. Two processes, because only a process that runs no foreign code can keep two promises whatever the tool does:
it ends when the worker dies, and nothing that the tool started outlives the call. It adopts every orphan of the tool
(child subreaper), so an escape by `setsid` is seen too.

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
"""Of the arguments: `uid:gid` of the user that a call becomes, empty for the worker's own; what a call is told that
becomes Node.js. Python calls have none of these."""
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
    """Some systems drop a blocked SIGCHLD that has no action of its own."""


def process_control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int, with_signal: int) -> None:
    process_control(PR_SET_PDEATHSIG, with_signal)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)


def become_tool(result_fd: int, watcher: int, user: list[int]) -> None:
    """Loads the part that runs foreign code. The signals stay blocked until it can answer them. Never returns."""
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
        die_with_parent(watcher, signal.SIGKILL)  # behind the change of user, which forgets it
        child.run(*program, result_fd, WATCHED)
    finally:
        os._exit(1)


def become_user(user: list[int]) -> None:
    """Gives root up for good. `user`: the number of the user and of its group; empty: it stays as it is.

    Our files are loaded before: root's may be closed to this user. The watcher stays root, out of the tool's reach.
    """
    if user:
        uid, gid = user
        os.setgroups([])
        os.setregid(gid, gid)
        os.setreuid(uid, uid)
        if os.getuid() != uid or os.geteuid() != uid:
            raise PermissionError("the tools' user was not taken")


def watch(tool: int, grace_s: float) -> int:
    """Waits for the tool's process, passes a cancellation on, and leaves nothing behind. Returns the exit status."""
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
    """A wait status as a shell would say it: 128 + n for a death by signal n."""
    if status is None:
        return 128 + signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def reap(tool: int) -> int | None:
    """Buries who has died, up to the tool. Its wait status if it was among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == tool:
            return status
        if pid == 0:
            return None


def kill_everything(tool: int) -> None:
    """Kills the tool's group and every process that came from it. Asks the kernel, not a list, whether any is left."""
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
    """Kills processes, and of a negative number the whole group. Those that are gone already are what we want."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def processes() -> list[tuple[int, int, int]]:
    """(pid, parent, session) of every process, where the system has /proc; else nothing."""
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
