"""Tools that ask the kernel for more than a tool needs: other namespaces, other privileges, parts with many faults.

Where an ordinary user is refused anyway, with or without walls, the attack is here for the machines where it is not.
"""

from tests.security.hostile.hostile_tool import HostileTool

KERNEL_CALLS = (
    HostileTool(
        "mount",
        "mounts over the folders of everybody, by the old calls and by the new ones",
        """
        def tool(planted):
            return verdict({
                "tmpfs": lambda: kernel((165, 40), b"x", b"/tmp", b"tmpfs", 0, b"size=4096") == 0,
                "bind": lambda: kernel((165, 40), b"/etc", b"/tmp", None, 4096, None) == 0,
                "umount": lambda: kernel((166, 39), b"/tmp", 2) == 0,
                "open_tree": lambda: kernel(428, -100, b"/", 1),
                "fsopen": lambda: kernel(430, b"tmpfs", 0),
            })
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "user_namespace",
        "becomes root in a user namespace of its own, and mounts there",
        """
        def tool(planted):
            def inside():
                kernel((272, 97), 0x10000000 | 0x00020000)
                mounted = kernel((165, 40), b"x", b"/tmp", b"tmpfs", 0, b"size=4096") == 0
                return f"root in a namespace, mounted: {mounted}"
            return verdict({"in a child": lambda: child(inside), "here": inside})
        """,
    ),
    HostileTool(
        "namespace_by_clone3",
        "asks for a user namespace by clone3, whose flags no filter can read",
        """
        def tool(planted):
            arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
            def clone():
                pid = kernel(435, arguments, ctypes.sizeof(arguments))
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
                return f"process {pid} in a user namespace"
            return verdict({"clone3": clone})
        """,
    ),
    HostileTool(
        "calls_of_32_bits",
        "makes the system calls of 32-bit programs, which have other numbers than the filter may know",
        """
        def tool(planted):
            if not INTEL:
                return "HELD: not on this machine"
            import mmap
            code = mmap.mmap(-1, 4096, prot=7)
            # mov eax, 310 (unshare); mov ebx, CLONE_NEWUSER; push rbx first, pop it after; int 0x80; ret
            code.write(bytes.fromhex("53" "b836010000" "bb00000010" "cd80" "5b" "c3"))
            call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
            answer = call()
            return f"ESCAPED: a user namespace" if answer == 0 else f"HELD: {answer}"
        """,
    ),
    HostileTool(
        "calls_of_x32",
        "sets the bit that makes a system call one of the x32 kind",
        """
        def tool(planted):
            if not INTEL:
                return "HELD: not on this machine"
            return verdict({"unshare": lambda: kernel(0x40000000 + 272, 0x10000000) == 0,
                            "socket": lambda: kernel(0x40000000 + 41, 2, 1, 0)})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "change_root",
        "changes its root, by chroot and pivot_root, and climbs out over a folder that it kept open",
        """
        def tool(planted):
            def climb():
                top = os.open("/", os.O_RDONLY)
                os.makedirs("inner", exist_ok=True)
                os.chroot("inner")
                os.fchdir(top)
                return os.listdir(".")
            return verdict({"chroot": lambda: os.chroot("/tmp") is None or None, "climb": climb,
                            "pivot_root": lambda: kernel((155, 41), b"/", b"/tmp") == 0})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "other_namespaces",
        "enters the namespaces of other processes",
        """
        def tool(planted):
            def enter(pid, kind):
                with open(f"/proc/{pid}/ns/{kind}") as door:
                    return kernel((308, 268), door.fileno(), 0) == 0
            def by_descriptor(pid):
                return kernel((308, 268), kernel(434, pid, 0), 0x10000000 | 0x00020000 | 0x40000000) == 0
            pids = {1, os.getppid(), *planted["pids"]} - {os.getpid(), 0}
            return verdict({f"{kind} of {pid}": lambda pid=pid, kind=kind: enter(pid, kind)
                            for pid in pids for kind in ("user", "mnt", "net", "pid", "ipc")}
                           | {f"pidfd of {pid}": lambda pid=pid: by_descriptor(pid) for pid in pids})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "privileges",
        "takes another user's id or keeps privileges",
        """
        def tool(planted):
            import ctypes
            head = (ctypes.c_uint32 * 2)(0x20080522, 0)
            sets = (ctypes.c_uint32 * 6)()
            def held():
                kernel((125, 90), head, sets)
                return any(sets[index] for index in (0, 1, 3, 4)) and f"capabilities {list(sets)}"
            return verdict({
                "setuid": lambda: os.setuid(0) is None and os.getuid() == 0 and "root",
                "setresuid": lambda: os.setresuid(0, 0, 0) is None and "root",
                "setgroups": lambda: os.setgroups([0]) is None and "groups",
                "capabilities": held,
                "privileges of programs": lambda: LIBC.prctl(39, 0, 0, 0, 0) != 1 and "setuid programs work",
            })
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "keys",
        "uses the kernel's store of keys, which a user's processes share",
        """
        def tool(planted):
            return verdict({
                "add_key": lambda: kernel((248, 217), b"user", b"hostile", b"x", 1, -2),
                "keyctl": lambda: kernel((250, 219), 0, -2, 1),
                "request_key": lambda: kernel((249, 218), b"user", b"hostile", None, -2),
            })
        """,
    ),
    HostileTool(
        "programs_in_the_kernel",
        "loads programs into the kernel, and watches others: bpf, perf, userfaultfd",
        """
        def tool(planted):
            blank = ctypes.create_string_buffer(128)
            shape = (ctypes.c_uint32 * 32)(2, 4, 8, 1)
            def perf():
                settings = (ctypes.c_uint32 * 32)(1, 128)
                return kernel((298, 241), settings, 0, -1, -1, 0)
            return verdict({
                "bpf map": lambda: kernel((321, 280), 0, shape, 128),
                "bpf program": lambda: kernel((321, 280), 5, blank, 128),
                "perf": perf,
                "userfaultfd": lambda: kernel((323, 282), 1),
                "userfaultfd of faults in the kernel": lambda: kernel((323, 282), 0),
            })
        """,
    ),
    HostileTool(
        "io_uring",
        "has its calls made by io_uring, past a filter of system calls",
        """
        def tool(planted):
            blank = ctypes.create_string_buffer(256)
            return verdict({"io_uring_setup": lambda: kernel(425, 4, blank),
                            "io_uring_register": lambda: kernel(427, -1, 0, None, 0)})
        """,
    ),
    HostileTool(
        "machine",
        "changes the machine: modules, another kernel, its clock, its name, its log, its swap",
        """
        def tool(planted):
            name, zeros = b"hostile", (ctypes.c_long * 4)()
            return verdict({
                "init_module": lambda: kernel((175, 105), zeros, 32, b"") == 0,
                "finit_module": lambda: kernel((313, 273), 0, b"", 0) == 0,
                "delete_module": lambda: kernel((176, 106), name, 2048) == 0,
                "kexec_load": lambda: kernel((246, 104), 0, 0, None, 0) == 0,
                "sethostname": lambda: kernel((170, 161), name, 7) == 0,
                "setdomainname": lambda: kernel((171, 162), name, 7) == 0,
                "clock": lambda: kernel((227, 112), 0, zeros) == 0,
                "swapon": lambda: kernel((167, 224), b"/tmp/none", 0) == 0,
                "acct": lambda: kernel((163, 89), None) == 0,
                "ports": lambda: kernel((172, None), 3) == 0,
                "vhangup": lambda: kernel((153, 58)) == 0,
            })
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "terminal",
        "types into the terminal of whoever started the worker",
        """
        def tool(planted):
            import fcntl, glob, termios
            def type_into(path):
                with open(path, "wb", buffering=0) as terminal:
                    fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
                return "typed"
            def take(path):
                os.setsid()
                with open(path, "wb", buffering=0) as terminal:
                    fcntl.ioctl(terminal, termios.TIOCSCTTY, 1)
                return "taken"
            def paste(descriptor):
                fcntl.ioctl(descriptor, termios.TIOCSTI, b"x")
                return "typed"
            paths = ["/dev/tty", "/dev/console", *glob.glob("/dev/pts/[0-9]*")]
            return verdict({f"{path}": lambda path=path: type_into(path) for path in paths}
                           | {f"descriptor {n}": lambda n=n: paste(n) for n in range(64)}
                           | {f"take {path}": lambda path=path: child(lambda: take(path)) for path in paths[2:]})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "settings_of_the_kernel",
        "opens the kernel's settings and control groups for writing",
        """
        def tool(planted):
            import glob
            paths = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory",
                     "/sys/kernel/uevent_helper", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/net/tun", "/dev/kvm",
                     *glob.glob("/sys/fs/cgroup/*/release_agent"), "/sys/fs/cgroup/cgroup.procs"]
            def below(path, value):
                with open(path, "w") as file:
                    file.write(value)
                return "written"
            return verdict({path: lambda path=path: os.open(path, os.O_WRONLY) for path in paths}
                           | {"to be spared": lambda: below("/proc/self/oom_score_adj", "-1000")})
        """,
        open_without_walls=False,
    ),
)
