"""Tools that want to go on when their call is over, or that will not let it end."""

from tests.security.hostile.hostile_tool import HostileTool

SURVIVE = (
    HostileTool(
        "daemon",
        "leaves by a double fork and a session of its own, with no descriptor left, and writes a file later",
        """
        def tool(planted):
            pid = os.fork()
            if pid == 0:
                os.setsid()
                if os.fork() == 0:
                    os.closerange(0, 256)
                    leave(planted, f"sleep 1; echo x >> {planted['folder']}/{planted['name']}; sleep 20")
                os._exit(0)
            return "HELD: the test looks for it"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "orphan_of_a_killed_watcher",
        "kills whoever watches it, when its child is in a session of its own already",
        """
        def tool(planted):
            import signal
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(0.3)
                    leave(planted)
                os._exit(0)
            time.sleep(0.2)
            if os.getppid() not in (0, 1, planted["worker"]):
                os.kill(os.getppid(), signal.SIGKILL)
            return "HELD: the test looks for it"
        """,
    ),
    HostileTool(
        "deaf",
        "ignores every signal and every exception, and sleeps",
        """
        def tool(planted):
            import signal
            for number in signal.valid_signals():
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True:
                try:
                    time.sleep(1000)
                except BaseException:
                    pass
        """,
        timeout_s=2,
        open_without_walls=False,
    ),
    HostileTool(
        "hold_the_pipes",
        "leaves a child that holds all descriptors open",
        """
        def tool(planted):
            if os.fork() == 0:
                os.setsid()
                leave(planted)
            return "HELD: the test looks for it"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "threads",
        "returns while threads that are no daemons go on",
        """
        def tool(planted):
            import threading
            def spin():
                while True:
                    pass
            for _ in range(4):
                threading.Thread(target=spin).start()
            return "HELD: the call must end"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "at_exit",
        "sleeps and forks when the interpreter ends",
        """
        class Last:
            def __del__(self):
                time.sleep(100)

        def tool(planted):
            import atexit, sys, threading
            def later():
                if os.fork() == 0:
                    leave(planted)
                time.sleep(100)
            atexit.register(later)
            threading._register_atexit(later)
            sys.hostile = Last()
            sys.stdout.flush = later
            return "HELD: the call must end"
        """,
        timeout_s=3,
        open_without_walls=False,
    ),
    HostileTool(
        "stopped",
        "stops itself, and no signal but one wakes it",
        """
        def tool(planted):
            import signal
            os.kill(os.getpid(), signal.SIGSTOP)
            return "HELD: somebody woke it"
        """,
        timeout_s=2,
        open_without_walls=False,
    ),
    HostileTool(
        "stopped_children",
        "leaves children that are stopped, traced and zombies",
        """
        def tool(planted):
            import signal
            for kind in range(3):
                pid = os.fork()
                if pid == 0:
                    os.setsid()
                    if kind == 0:
                        LIBC.ptrace(0, 0, 0, 0)
                    if kind < 2:
                        os.kill(os.getpid(), signal.SIGSTOP)
                    os._exit(0)
            return "HELD: the test looks for them"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "leader_exits",
        "ends its first thread and goes on in another",
        """
        def tool(planted):
            import threading
            def go_on():
                while True:
                    time.sleep(0.1)
            threading.Thread(target=go_on).start()
            kernel((60, 93), 0)
        """,
        timeout_s=2,
        open_without_walls=False,
    ),
    HostileTool(
        "another_program",
        "becomes another program, which knows nothing of a cancellation",
        """
        def tool(planted):
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            leave(planted, "trap '' TERM HUP INT; sleep 20")
        """,
        timeout_s=2,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "hop",
        "forks all the time and lets each parent end, so that whoever kills it comes too late",
        """
        def tool(planted):
            if os.fork() == 0:
                os.setsid()
                for _ in range(2000):
                    if os.fork():
                        os._exit(0)
                    os.setsid()
                    time.sleep(0.001)
                os._exit(0)
            return "HELD: the test looks for it"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "sibling",
        "starts a process whose parent is the sandbox, not the tool",
        """
        def tool(planted):
            pid = kernel((56, 220), 0x8000 | 17, 0, 0, 0, 0)
            if pid == 0:
                os.setsid()
                leave(planted)
            return "HELD: the test looks for it"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "adoptive_parent",
        "adopts its orphans, forgets whose death ends it, and waits",
        """
        def tool(planted):
            LIBC.prctl(36, 1, 0, 0, 0)
            LIBC.prctl(1, 0, 0, 0, 0)
            if os.fork() == 0:
                if os.fork() == 0:
                    LIBC.prctl(1, 0, 0, 0, 0)
                    os.setsid()
                    leave(planted)
                os._exit(0)
            return "HELD: the test looks for it"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "refuse_the_cancellation",
        "catches its cancellation again and again, and forks when it comes",
        """
        def tool(planted):
            import signal
            while True:
                try:
                    time.sleep(30)
                except BaseException:
                    if os.fork() == 0:
                        os.setsid()
                        leave(planted)
        """,
        timeout_s=2,
        open_without_walls=False,
    ),
    HostileTool(
        "timers",
        "plans to be woken: by a timer, by cron, by a service file",
        """
        def tool(planted):
            import signal
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            def write(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write("* * * * * true")
                return "written"
            home = planted["folder"]
            return verdict({path: lambda path=path: write(path) for path in (
                "/var/spool/cron/crontabs/" + planted["name"], "/etc/cron.d/" + planted["name"],
                home + "/.config/systemd/user/" + planted["name"] + ".service", home + "/.profile")})
        """,
    ),
)
