"""Tools that take all there is of something: memory of many kinds, processes, descriptors, files, processor, output.

Each stops by itself at a bound that the machine survives, and says how far it came.
"""

from tests.security.hostile.hostile_tool import HostileTool

EXHAUST = (
    HostileTool(
        "memory",
        "takes private memory, in one piece and in many",
        """
        def tool(planted):
            pieces = []
            try:
                for _ in range(96):
                    pieces.append(bytearray(b"x") * (16 << 20))
            except MemoryError:
                taken, pieces = len(pieces) * 16, None
                return f"HELD: at {taken} MB"
            return f"ESCAPED: {len(pieces) * 16} MB"
        """,
        alone=True,
        open_without_walls=False,
    ),
    HostileTool(
        "memory_without_address",
        "takes memory that lies in no address space: memfd, written to and never mapped",
        """
        def tool(planted):
            piece, taken = b"x" * (1 << 20), 0
            try:
                while taken < 1200:
                    file = kernel((319, 279), b"x", 0)
                    for _ in range(32):
                        os.write(file, piece)
                        taken += 1
            except (OSError, MemoryError) as error:
                return f"ESCAPED: {taken} MB" if taken > 512 else f"HELD: {error} at {taken} MB"
            return f"ESCAPED: {taken} MB"
        """,
        alone=True,
    ),
    HostileTool(
        "secret_memory",
        "takes memory that the kernel itself cannot see, or keeps it from being moved: memfd_secret, mlock",
        """
        def tool(planted):
            import mmap
            held = mmap.mmap(-1, 128 << 20)
            address = ctypes.addressof(ctypes.c_char.from_buffer(held))
            return verdict({"memfd_secret": lambda: kernel(447, 0),
                            "mlock": lambda: kernel((149, 228), ctypes.c_void_p(address), 100 << 20) == 0})
        """,
    ),
    HostileTool(
        "memory_of_the_kernel",
        "fills as many pairs of sockets as it gets, with buffers as large as they can be made",
        """
        def tool(planted):
            import socket
            kept, taken, piece = [], 0, b"x" * 65536
            def fill(descriptor):
                filled = 0
                os.set_blocking(descriptor, False)
                try:
                    while taken + filled < 128 << 20:
                        filled += os.write(descriptor, piece)
                except BlockingIOError:
                    pass
                return filled
            try:
                while taken < 128 << 20 and len(kept) < 1000:
                    pair = socket.socketpair()
                    kept.append(pair)
                    for one in pair:
                        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
                            try:
                                one.setsockopt(socket.SOL_SOCKET, name, 64 << 20)
                            except OSError:
                                pass
                        taken += fill(one.fileno())
            except (OSError, MemoryError):
                pass
            return f"ESCAPED: {taken >> 20} MB" if taken >= 64 << 20 else f"HELD: at {taken >> 20} MB"
        """,
    ),
    HostileTool(
        "memory_of_file_tables",
        "gives threads tables of open files of their own, each with room for as many full sockets as one process has",
        """
        def tool(planted):
            libc = ctypes.CDLL(None, use_errno=True)
            libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
            stack = ctypes.create_string_buffer(16384)
            top = ctypes.addressof(stack) + 16384 & ~15

            def by_clone():
                # CLONE_VM, CLONE_FS, CLONE_SIGHAND and CLONE_THREAD, without CLONE_FILES
                flags = 0x100 | 0x200 | 0x800 | 0x10000
                thread = libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, flags, None)
                if thread < 0:
                    raise OSError(ctypes.get_errno(), "clone")
                return thread

            return verdict({
                "clone": by_clone,
                "close_range": lambda: kernel(436, 1 << 20, 1 << 20, 2) == 0,
                "close_range, of those that a program inherits": lambda: kernel(436, 1 << 20, 1 << 20, 6) == 0,
                "unshare": lambda: kernel((272, 97), 0x400) == 0,
            })
        """,
    ),
    HostileTool(
        "memory_of_rulesets",
        "fills rulesets of landlock with rules, which the kernel keeps",
        """
        def tool(planted):
            import struct
            rules = 0
            try:
                for _ in range(4):
                    ruleset = kernel((444, 444), struct.pack("QQ", 0, 3), ctypes.c_size_t(16), 0)
                    for port in range(65536):
                        kernel((445, 445), ruleset, 2, struct.pack("=QQ", 2, port), 0)
                        rules += 1
            except OSError as error:
                return f"ESCAPED: {rules} rules" if rules else f"HELD: {error}"
            return f"ESCAPED: {rules} rules"
        """,
    ),
    HostileTool(
        "memory_of_filters",
        "gives itself filters of system calls, each as long as the kernel takes",
        """
        def tool(planted):
            import struct
            code = struct.pack("=HBBI", 0x20, 0, 0, 0) * 4000 + struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
            kept = ctypes.create_string_buffer(code, len(code))
            described = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(kept))
            program = ctypes.create_string_buffer(described, len(described))
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(38, 1, 0, 0, 0)

            def by_prctl():
                if libc.prctl(22, 2, ctypes.c_ulong(ctypes.addressof(program)), 0, 0):
                    raise OSError(ctypes.get_errno(), "prctl")
                return True

            return verdict({"by prctl": by_prctl, "by seccomp": lambda: kernel((317, 277), 1, 0, program) == 0})
        """,
    ),
    HostileTool(
        "memory_in_pipes",
        "fills as many pipes as it gets, each as large as it can be made",
        """
        def tool(planted):
            import fcntl
            kept, taken, piece = [], 0, b"x" * 65536
            try:
                while taken < 128 << 20:
                    pipe = os.pipe()
                    kept.append(pipe)
                    try:
                        fcntl.fcntl(pipe[1], 1031, 1 << 20)
                    except OSError:
                        pass
                    os.set_blocking(pipe[1], False)
                    try:
                        while True:
                            taken += os.write(pipe[1], piece)
                    except BlockingIOError:
                        pass
            except (OSError, MemoryError):
                pass
            return f"ESCAPED: {taken >> 20} MB" if taken >= 32 << 20 else f"HELD: at {taken >> 20} MB"
        """,
    ),
    HostileTool(
        "memory_that_stays",
        "makes System V memory, semaphores and queues, which outlive their process",
        """
        def tool(planted):
            made = {
                "memory": lambda: kernel((29, 194), 0, 4 << 20, 0o1600),
                "semaphores": lambda: kernel((64, 190), 0, 8, 0o1600),
                "queue": lambda: kernel((68, 186), 0, 0o1600),
            }
            verdict(made)  # in a namespace of its own they end with it: the test looks what is left
            return verdict({"memory of others": lambda: kernel((29, 194), planted["shared_key"], 0, 0)})
        """,
    ),
    HostileTool(
        "files_in_memory",
        "fills the folders that lie in memory",
        """
        def tool(planted):
            import tempfile
            written, piece = 0, b"x" * (1 << 20)
            for folder in dict.fromkeys([os.getcwd(), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run"]):
                for number in range(32):
                    try:
                        with open(f"{folder}/{planted['name']}-{number}", "wb") as file:
                            for _ in range(16):
                                written += file.write(piece) >> 20
                    except OSError:
                        break
            if written > 200:
                time.sleep(2)  # where no file system bounds it, somebody has to look
                return f"ESCAPED: {written} MB"
            return f"HELD: {written} MB"
        """,
        alone=True,
        growth_mb=1200,
    ),
    HostileTool(
        "many_small_files",
        "makes files without content, each of which costs memory or a place on the disk",
        """
        def tool(planted):
            made = 0
            try:
                for made in range(40_000):
                    os.close(os.open(f"{planted['name']}-{made}", os.O_CREAT | os.O_WRONLY))
            except OSError as error:
                return f"HELD: {error.errno} at {made}"
            time.sleep(2)
            return f"ESCAPED: {made} files"
        """,
        alone=True,
    ),
    HostileTool(
        "giant_file",
        "makes a file of a terabyte that is empty, and reserves room for another",
        """
        def tool(planted):
            import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            file = os.open(planted["name"], os.O_CREAT | os.O_RDWR)
            return verdict({"sparse": lambda: os.ftruncate(file, 1 << 40) is None,
                            "reserved": lambda: os.posix_fallocate(file, 0, 1 << 32) is None,
                            "far away": lambda: os.pwrite(file, b"x", 1 << 38)})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "fork_bomb",
        "starts processes until it cannot",
        """
        def tool(planted):
            import signal
            started = 0
            try:
                while started < 400:
                    if os.fork() == 0:
                        signal.alarm(6)
                        signal.pause()
                        os._exit(0)
                    started += 1
            except OSError as error:
                return f"ESCAPED: {started} processes" if started > 200 else f"HELD: {error.errno} at {started}"
            return f"ESCAPED: {started} processes"
        """,
        alone=True,
    ),
    HostileTool(
        "thread_bomb",
        "starts threads until it cannot",
        """
        def tool(planted):
            import _thread, threading
            threading.stack_size(64 << 10)
            over, started = threading.Event(), 0
            try:
                while started < 1500:
                    _thread.start_new_thread(over.wait, (6,))
                    started += 1
            except (RuntimeError, MemoryError, OSError) as error:
                over.set()
                return f"ESCAPED: {started} threads" if started > 1030 else f"HELD: {error} at {started}"
            over.set()
            return f"ESCAPED: {started} threads"
        """,
        alone=True,
        timeout_s=8,
        open_without_walls=False,
    ),
    HostileTool(
        "memory_of_many",
        "has many children take what each may",
        """
        def tool(planted):
            import signal
            taken = 0
            reading, writing = os.pipe()
            try:
                for _ in range(6):
                    pid = os.fork()
                    if pid == 0:
                        signal.alarm(20)
                        held = bytearray(b"x") * (150 << 20)
                        os.write(writing, held[:1])
                        signal.pause()
                        os._exit(0)
                    taken += 150
                for _ in range(6):
                    os.read(reading, 1)
                time.sleep(1.5)
            except OSError as error:
                return f"HELD: {error} at {taken} MB"
            return "HELD: the test measures what it took"
        """,
        alone=True,
    ),
    HostileTool(
        "descriptors",
        "opens files until it cannot, and makes pipes as large as they can be",
        """
        def tool(planted):
            import fcntl
            opened, room = 0, 0
            try:
                while opened < 10_000:
                    reading, writing = os.pipe()
                    opened += 2
                    if room < 512 << 20:
                        room += fcntl.fcntl(writing, 1031, 1 << 20)  # F_SETPIPE_SZ
            except OSError as error:
                if opened < 4000 and room < 128 << 20:
                    return f"HELD: {opened}"
            return f"ESCAPED: {opened} and {room >> 20} MB"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "descriptors_on_their_way",
        "sends itself descriptors and takes none, until nobody of the same user can send one",
        """
        def tool(planted):
            import socket
            one, _ = pair = socket.socketpair()
            sent, files = 0, [os.open("/dev/null", 0) for _ in range(50)]
            try:
                while sent < 1000:
                    socket.send_fds(one, [b"x"], files)
                    sent += len(files)
            except OSError as error:
                return f"ESCAPED: {sent} descriptors" if sent else f"HELD: {error}"
            return f"ESCAPED: {sent} descriptors"
        """,
    ),
    HostileTool(
        "asynchronous_io",
        "takes the requests of asynchronous input and output that the machine has for all",
        """
        def tool(planted):
            taken, contexts = 0, []
            try:
                while taken < 8192:
                    contexts.append(ctypes.c_ulong(0))
                    kernel((206, 0), 256, ctypes.byref(contexts[-1]))
                    taken += 256
            except OSError as error:
                return f"ESCAPED: {taken} requests" if taken else f"HELD: {error}"
            return f"ESCAPED: {taken} requests"
        """,
    ),
    HostileTool(
        "spin",
        "burns the processor for ever",
        """
        def tool(planted):
            while True:
                pass
        """,
        timeout_s=2,
        open_without_walls=False,
    ),
    HostileTool(
        "spin_in_c",
        "burns the processor where no signal is looked at: a regular expression that never ends",
        """
        def tool(planted):
            import re
            re.match(r"(a+)+$", "a" * 64 + "b")
        """,
        timeout_s=2,
        open_without_walls=False,
    ),
    HostileTool(
        "flood",
        "writes half a gigabyte to each of its outputs",
        """
        def tool(planted):
            piece = b"A" * (1 << 20)
            for number in range(1024):
                os.write(1 + number % 2, piece)
            return "HELD: the test looks at what was kept"
        """,
        alone=True,
        open_without_walls=False,
    ),
    HostileTool(
        "giant_result",
        "returns a hundred megabytes",
        """
        def tool(planted):
            return "HELD" + "R" * (100 << 20)
        """,
        alone=True,
        open_without_walls=False,
    ),
    HostileTool(
        "deep_result",
        "returns a list in a list, a hundred thousand deep",
        """
        def tool(planted):
            result = []
            for _ in range(100_000):
                result = [result]
            return result
        """,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "endless_result",
        "returns what never becomes a text: objects that describe themselves for ever",
        """
        class Endless:
            def __repr__(self):
                while True:
                    pass
            __str__ = __repr__

        class Doubling(dict):
            def items(self):
                while True:
                    yield "x" * 1000, Endless()

        def tool(planted):
            return Doubling(a=Endless())
        """,
        timeout_s=2,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "giant_error",
        "fails with an error of a hundred megabytes and a traceback without an end",
        """
        def tool(planted):
            def deeper(n):
                try:
                    deeper(n + 1)
                except RecursionError as error:
                    raise RuntimeError("E" * (100 << 20)) from error
            deeper(0)
        """,
        alone=True,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "unprintable_output",
        "prints and returns what no terminal, log or database should get",
        """
        def tool(planted):
            junk = bytes(range(32)) + b"\\xff\\xfe\\xed\\xa0\\x80" + b"\\x1b]0;owned\\x07\\x1b[2J" + b"\\0" * 1000
            for number in (1, 2):
                os.write(number, junk * 50)
            return "HELD" + "".join(map(chr, range(32))) + "\\0\\ud800\\udfff\\u202e" * 100
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "crash",
        "crashes by a null pointer, after it has allowed itself a core file",
        """
        def tool(planted):
            import resource
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
            except (OSError, ValueError):
                pass
            ctypes.string_at(0)
        """,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "overflow_the_stack",
        "crashes by a recursion that only C counts",
        """
        def tool(planted):
            import sys
            sys.setrecursionlimit(1 << 30)
            class Loop:
                def __getattr__(self, name):
                    return getattr(self, name + "x")
            return getattr(Loop(), "x")
        """,
        says=False,
        timeout_s=5,
        open_without_walls=False,
    ),
)
