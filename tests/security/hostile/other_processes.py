"""Tools that reach for other processes: to read them, to steer them, to weaken them, to end them."""

from tests.security.hostile.hostile_tool import HostileTool

OTHER_PROCESSES = (
    HostileTool(
        "trace",
        "traces the worker and whatever else it can",
        """
        def tool(planted):
            def seize(pid):
                kernel((101, 117), 0x4206, pid, 0, 0)
                return "seized"
            def briefly(pid):  # who is traced stands still at its next signal, until the tracer ends
                try:
                    return child(lambda: seize(pid))
                except OSError:
                    return seize(pid)
            pids = {os.getppid(), *planted["pids"]} - {os.getpid(), 0}
            return verdict({f"{pid}": lambda pid=pid: briefly(pid) for pid in pids})
        """,
    ),
    HostileTool(
        "memory_of_others",
        "reads and writes the memory of the worker, by every way there is",
        """
        def tool(planted):
            kept = ctypes.create_string_buffer(64)
            mine = (ctypes.c_void_p * 2)(ctypes.addressof(kept), 64)
            theirs = (ctypes.c_void_p * 2)(4096, 64)
            def by_call(numbers, pid):
                try:
                    kernel(numbers, pid, mine, 1, theirs, 1, 0)
                except OSError as error:
                    if error.errno != 14:  # a bad address is found only by who may look
                        raise
                return "allowed"
            def by_file(pid, flags):
                os.close(os.open(f"/proc/{pid}/mem", flags))
                return "opened"
            attempts = {}
            for pid in {1, os.getppid(), *planted["pids"]} - {os.getpid(), 0}:
                attempts |= {
                    f"read {pid}": lambda pid=pid: by_call((310, 270), pid),
                    f"write {pid}": lambda pid=pid: by_call((311, 271), pid),
                    f"mem of {pid}": lambda pid=pid: by_file(pid, os.O_RDWR),
                    f"maps of {pid}": lambda pid=pid: open(f"/proc/{pid}/maps").read(200),
                    f"auxv of {pid}": lambda pid=pid: open(f"/proc/{pid}/auxv", "rb").read(16),
                }
            return verdict(attempts)
        """,
    ),
    HostileTool(
        "descriptors_of_others",
        "takes descriptors out of other processes",
        """
        def tool(planted):
            def take(pid, number):
                return kernel(438, kernel(434, pid, 0), number, 0)
            def open_again(pid, number):
                file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
                try:
                    return b"planted" + b"-" in os.read(file, 1000) and "read"
                finally:
                    os.close(file)
            def through(pid, kind):
                return os.listdir(f"/proc/{pid}/{kind}/srv/worker" if kind == "root" else f"/proc/{pid}/{kind}")
            attempts = {}
            for pid in {1, os.getppid(), *planted["pids"]} - {os.getpid(), 0}:
                for number in range(0, 24):
                    attempts[f"{number} of {pid}"] = lambda pid=pid, number=number: take(pid, number)
                    attempts[f"file {number} of {pid}"] = lambda pid=pid, number=number: open_again(pid, number)
                attempts[f"root of {pid}"] = lambda pid=pid: through(pid, "root")
                attempts[f"folder of {pid}"] = lambda pid=pid: through(pid, "cwd")
            return verdict(attempts)
        """,
    ),
    HostileTool(
        "weaken_the_worker",
        "takes descriptors, processor and priority from processes that it does not have to signal",
        """
        def tool(planted):
            import resource
            attempts = {}
            for pid in {os.getppid(), *planted["pids"]} - {os.getpid(), 0, 1}:
                attempts |= {
                    f"limits of {pid}": lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),
                    f"priority of {pid}": lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 1) is None or None,
                    f"cores of {pid}": lambda pid=pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid)) is None,
                    f"disk of {pid}": lambda pid=pid: kernel((251, 30), 1, pid, (2 << 13) | 7) == 0,
                    f"schedule of {pid}": lambda pid=pid: os.sched_setscheduler(
                        pid, os.SCHED_BATCH, os.sched_param(0)) is None,
                    f"group of {pid}": lambda pid=pid: os.setpgid(pid, os.getpgrp()) is None,
                }
            attempts["priority of all"] = lambda: os.setpriority(os.PRIO_USER, os.getuid(), 2) is None and (
                os.getpriority(os.PRIO_PROCESS, planted["worker"]) == 2)
            return verdict(attempts)
        """,
    ),
    HostileTool(
        "signal_harmlessly",
        "may signal other processes, by any call that signals",
        """
        def tool(planted):
            import fcntl, signal
            def by_queue(pid):
                return kernel((129, 138), pid, signal.SIGCONT, ctypes.create_string_buffer(128)) == 0
            def by_descriptor(pid):
                return kernel(424, kernel(434, pid, 0), signal.SIGCONT, None, 0) == 0
            def by_input(pid):
                import socket
                one, other = socket.socketpair()
                fcntl.fcntl(one, fcntl.F_SETOWN, pid)
                fcntl.fcntl(one, 10, signal.SIGCONT)  # F_SETSIG: by any signal, SIGKILL too
                fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
                other.send(b"x")
                return "landlock alone stops it, where it is new enough"
            def by_request(pid):
                import array, socket
                one, other = socket.socketpair()
                return fcntl.ioctl(one, 0x8901, array.array("i", [pid])) == 0  # FIOSETOWN
            attempts = {"everybody": lambda: os.kill(-1, signal.SIGCONT) is None}
            for pid in {os.getppid(), *planted["pids"]} - {os.getpid(), 0, 1}:
                attempts |= {
                    f"kill {pid}": lambda pid=pid: os.kill(pid, signal.SIGCONT) is None,
                    f"group {pid}": lambda pid=pid: os.killpg(pid, signal.SIGCONT) is None,
                    f"queue {pid}": lambda pid=pid: by_queue(pid),
                    f"thread {pid}": lambda pid=pid: kernel((234, 131), pid, pid, signal.SIGCONT) == 0,
                    f"pidfd {pid}": lambda pid=pid: by_descriptor(pid),
                    f"input {pid}": lambda pid=pid: by_input(pid),
                    f"request {pid}": lambda pid=pid: by_request(pid),
                }
            return verdict(attempts)
        """,
    ),
    HostileTool(
        "kill_the_others",
        "kills the worker, the sandbox and all that it can number",
        """
        def tool(planted):
            import signal
            pids = [pid for pid in (os.getppid(), *planted["pids"], *range(2, 400)) if pid not in (os.getpid(), 0, 1)]
            return verdict({f"{pid}": lambda pid=pid: os.kill(pid, signal.SIGKILL) is None for pid in pids})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "kill_everybody_at_once",
        "kills all processes of its user by one call",
        """
        def tool(planted):
            import signal
            return verdict({"everybody": lambda: os.kill(-1, signal.SIGKILL) is None})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "stop_the_others",
        "stops the worker and the sandbox, which would answer nobody then",
        """
        def tool(planted):
            import signal
            pids = [pid for pid in (os.getppid(), *planted["pids"]) if pid not in (os.getpid(), 0, 1)]
            return verdict({f"{pid}": lambda pid=pid: os.kill(pid, signal.SIGSTOP) is None for pid in pids})
        """,
        open_without_walls=False,
    ),
)
