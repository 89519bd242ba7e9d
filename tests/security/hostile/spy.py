"""Tools that look for what others have: their secrets, arguments, files and memory."""

from tests.security.hostile.hostile_tool import HostileTool

SPY = (
    HostileTool(
        "environment",
        "looks for secrets in the environment that it was given",
        """
        def tool(planted):
            wanted = ("SECRET", "REDIS", "API_KEY", "DATABASE", "HOLDFAST", "JAIL")
            found = {name: text for name, text in os.environ.items() if any(part in name for part in wanted)}
            return f"ESCAPED: {found}" if found else f"HELD: {sorted(os.environ)}"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "environment_of_others",
        "reads the environment and the command of every process",
        """
        def tool(planted):
            def look(pid, kind):
                return read(f"/proc/{pid}/{kind}")
            try:
                pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
            except OSError:
                pids = set()
            return verdict({f"{kind} of {pid}": lambda pid=pid, kind=kind: look(pid, kind)
                            for pid in pids | set(planted["pids"]) | {1} for kind in ("environ", "cmdline")})
        """,
    ),
    HostileTool(
        "list_processes",
        "lists what else runs",
        """
        def tool(planted):
            def commands():
                found = []
                for name in os.listdir("/proc"):
                    if name.isdigit() and int(name) in planted["pids"] and int(name) not in (os.getpid(), 1):
                        with open(f"/proc/{name}/cmdline", "rb") as file:
                            found.append(file.read()[:100])
                return [command for command in found if b"stand_in_worker" in command] or None
            return verdict({"commands": commands})
        """,
    ),
    HostileTool(
        "folders_of_others",
        "searches all that it can list for files with secrets: other calls' folders among them",
        """
        def tool(planted):
            found, seen, until = [], 0, time.monotonic() + 4
            tops = "/tmp /var/tmp /dev/shm /run /srv /home /root /var/lib /mnt /opt /media"
            for top in (".", *tops.split()):
                for folder, folders, names in os.walk(top):
                    if folder.startswith((planted["base_prefix"], planted["checkout"])):
                        folders.clear()
                        continue
                    for name in names:
                        seen += 1
                        try:
                            if text := read(f"{folder}/{name}"):
                                found.append((f"{folder}/{name}", text[:60]))
                        except OSError:
                            pass
                    if time.monotonic() > until:
                        break
            return f"ESCAPED: {found}" if found else f"HELD: {seen} files without one"
        """,
    ),
    HostileTool(
        "memory_of_earlier_calls",
        "searches its own memory for what an earlier call, or whoever forked it, has left there",
        """
        def tool(planted):
            import re
            own = "planted" + "-" + "own-" + "0123456789abcdef"
            kept = [own.encode() * 3, own * 2]
            pattern = re.compile(rb"planted-([a-z]+)-([0-9a-f]{16})")
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            found = set()
            def search(address, size):
                for start in range(address, address + size, 4096):
                    try:
                        if LIBC.write(writing, ctypes.c_void_p(start), 4096) == 4096:
                            found.update(match[0] for match in pattern.finditer(os.read(reading, 4096)))
                    except OSError:
                        pass
            try:
                with open("/proc/self/maps") as maps:
                    areas = [line.split()[0].split("-") for line in maps if "rw" in line.split()[1]]
                ranges = [(int(low, 16), int(high, 16)) for low, high in areas]
            except OSError:
                LIBC.sbrk.restype = ctypes.c_void_p
                end, middle = LIBC.sbrk(0), id(kept) & ~4095
                ranges = [(end - (48 << 20), end), (middle - (32 << 20), middle + (32 << 20))]
            for low, high in ranges:
                search(low, min(high - low, 96 << 20))
            others = {text for text in found if text != own.encode()}
            if own.encode() not in found:
                return "the search does not find even its own"
            return f"ESCAPED: {others}" if others else "HELD: only its own"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "objects_of_earlier_calls",
        "searches the interpreter's objects for what an earlier call has left: sources, arguments, modules",
        """
        def tool(planted):
            import gc, linecache, sys
            marks = ["-".join(("planted", kind)) for kind in ("call", "argument")]
            marks += [" ".join(("def", name)) for name in ("victim", "ordinary")]
            found = []
            seen, waiting = set(), [*gc.get_objects(), sys.modules, linecache.cache]
            while waiting and len(seen) < 2_000_000:
                one = waiting.pop()
                if id(one) in seen:
                    continue
                seen.add(id(one))
                if isinstance(one, (str, bytes)):
                    text = one if isinstance(one, str) else one.decode("latin-1")
                    if text not in marks and any(mark in text for mark in marks) and "def hostile" not in text:
                        found.append(text[:100])
                elif isinstance(one, (dict, list, tuple, set)):
                    waiting.extend(one.values() if isinstance(one, dict) else one)
            return f"ESCAPED: {found[:3]}" if found else f"HELD: {len(seen)} objects"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "shared_memory",
        "attaches to memory that the worker shares with nobody",
        """
        def tool(planted):
            def attach():
                LIBC.shmat.restype = ctypes.c_void_p
                segment = kernel((29, 194), planted["shared_key"], 0, 0)
                address = LIBC.shmat(segment, None, 4096)
                return ctypes.string_at(address, 60)
            return verdict({"attach": attach, "file": lambda: read("/dev/shm/holdfast")})
        """,
    ),
    HostileTool(
        "log_of_the_kernel",
        "reads the kernel's log and the addresses in it",
        """
        def tool(planted):
            kept = ctypes.create_string_buffer(1024)
            def addresses():
                with open("/proc/kallsyms") as names:
                    return any(int(line.split()[0], 16) for line in names)
            return verdict({"log": lambda: kernel((103, 116), 3, kept, 1024), "device": lambda: open("/dev/kmsg", "rb"),
                            "addresses": addresses})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "parts_of_the_worker",
        "imports the worker's own packages, and reads its sources and settings",
        """
        def tool(planted):
            import importlib, sys
            def load(name):
                return importlib.import_module(name).__file__
            def product():
                with open(planted["checkout"] + "/worker/main.py") as file:
                    return file.read(40)
            def load_or_none(name):
                try:
                    return load(name)
                except ImportError:
                    return None
            names = ("worker.main", "shared.process.settings", "msgspec", "redis", "sqlalchemy")
            return verdict({name: lambda name=name: load_or_none(name) for name in names} | {"source": product})
        """,
    ),
)
