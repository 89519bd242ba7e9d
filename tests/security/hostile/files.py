"""Tools that reach for files which are not theirs: to read them, to change them, or to have the worker change them."""

from tests.security.hostile.hostile_tool import HostileTool

FILES = (
    HostileTool(
        "read_files",
        "reads what belongs to the worker and the machine: keys, databases, other folders",
        """
        def tool(planted):
            paths = [planted["file"], planted["folder"] + "/holdfast.db", "/etc/shadow", "/root/.ssh/id_rsa",
                     "/proc/1/environ", "/dev/shm/holdfast", "/var/lib/redis/dump.rdb", "/run/secrets/key"]
            folders = [planted["folder"], "/root", "/home", "/dev/shm"]
            def listing(folder):
                return [name for name in os.listdir(folder) if os.path.abspath(folder) not in os.getcwd()] or None
            return verdict({path: lambda path=path: read(path) for path in paths}
                           | {folder: lambda folder=folder: listing(folder) for folder in folders})
        """,
    ),
    HostileTool(
        "links_to_files",
        "links others' files into its own folder and reads them there",
        """
        def tool(planted):
            def linked(make, name):
                make(planted["file"], name)
                return read(name)
            def upwards():
                return read("../" * 12 + planted["file"].lstrip("/"))
            def by_own_root():
                return read("/proc/self/root" + planted["file"])
            return verdict({"symbolic": lambda: linked(os.symlink, "soft"), "hard": lambda: linked(os.link, "hard"),
                            "upwards": upwards, "own root": by_own_root})
        """,
    ),
    HostileTool(
        "file_handles",
        "opens a file by its handle, past every folder",
        """
        def tool(planted):
            handle = ctypes.create_string_buffer(140)
            ctypes.c_uint32.from_buffer(handle).value = 128
            mount = ctypes.c_int()
            def by_handle(path):
                kernel((303, 264), -100, path.encode(), handle, ctypes.byref(mount), 0)
                start = os.open("/", os.O_RDONLY)
                opened = kernel((304, 265), start, handle, os.O_RDONLY)
                return os.read(opened, 100)
            def by_guess():
                ctypes.memmove(handle, (ctypes.c_uint32 * 4)(8, 1, 2, 0), 16)
                return kernel((304, 265), os.open("/", os.O_RDONLY), handle, os.O_RDONLY)
            return verdict({"its handle": lambda: by_handle(planted["file"]), "the root's": by_guess})
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "write_files",
        "leaves files, and changes those of the worker",
        """
        def tool(planted):
            def write(path):
                with open(path, "a") as file:
                    file.write("hostile")
                return "written"
            paths = [f"{folder}/{planted['name']}" for folder in
                     ("/tmp", "/var/tmp", "/dev/shm", "/run", "/srv", "/etc", "/usr/lib", "/", planted["folder"])]
            for path in paths[:-1]:  # there may be folders of its own by these names: the test looks at the real ones
                try:
                    write(path)
                except OSError:
                    pass
            return verdict({path: lambda path=path: write(path) for path in paths[-1:]})
        """,
    ),
    HostileTool(
        "change_files",
        "renames, removes, empties and shares files of the worker without opening them",
        """
        def tool(planted):
            folder, kept = planted["folder"], planted["folder"] + "/holdfast.db"
            return verdict({
                "truncate": lambda: os.truncate(kept, os.stat(kept).st_size) is None,
                "rename": lambda: os.rename(kept, folder + "/" + planted["name"]) is None,
                "rename back": lambda: os.rename(folder + "/" + planted["name"], kept) is None,
                "make a folder": lambda: os.mkdir(folder + "/" + planted["name"]) is None,
                "remove a folder": lambda: os.rmdir(folder + "/" + planted["name"]) is None,
                "link": lambda: os.symlink("/", folder + "/" + planted["name"]) is None,
                "unlink": lambda: os.unlink(folder + "/" + planted["name"]) is None,
            })
        """,
    ),
    HostileTool(
        "change_who_may_read",
        "changes mode, owner, times and attributes of the worker's files, which needs no descriptor",
        """
        def tool(planted):
            kept = planted["folder"] + "/holdfast.db"
            return verdict({
                "mode": lambda: os.chmod(kept, 0o666) is None,
                "mode of the folder": lambda: os.chmod(planted["folder"], 0o755) is None,
                "owner": lambda: os.chown(kept, os.getuid(), os.getgid()) is None,
                "times": lambda: os.utime(kept, (1, 1)) is None,
                "attributes": lambda: os.setxattr(kept, "user.hostile", b"x") is None,
            })
        """,
    ),
    HostileTool(
        "watch_files",
        "watches the folders of others, and so learns names and times",
        """
        def tool(planted):
            watcher = None
            def watch(path):
                watcher = kernel((294, 26), 0)
                return kernel((254, 27), watcher, path.encode(), 0xFFF)
            folders = [planted["folder"], "/dev/shm"]
            return verdict({path: lambda path=path: watch(path) for path in folders}
                           | {"fanotify": lambda: kernel((300, 262), 0x200, 0)})
        """,
    ),
    HostileTool(
        "leases",
        "takes leases on files, for which everybody must wait who opens them",
        """
        def tool(planted):
            import fcntl, json
            def lease(path, kind):
                file = os.open(path, os.O_RDONLY)
                try:
                    return fcntl.fcntl(file, fcntl.F_SETLEASE, kind) == 0
                finally:
                    os.close(file)  # its own next opening would wait too
            open("own", "w").close()
            return verdict({f"{kind} of {path}": lambda path=path, kind=kind: lease(path, kind)
                            for path in ("own", json.__file__) for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK)})
        """,
    ),
    HostileTool(
        "trap_for_the_cleaner",
        "leaves links to the worker's folders, and folders that are hard to remove, where the worker will clean up",
        """
        def tool(planted):
            here = os.getcwd()
            os.symlink(planted["folder"], "link")
            os.makedirs("locked/inner")
            open("locked/inner/" + planted["name"], "w").close()
            os.chmod("locked/inner", 0)
            os.chmod("locked", 0)
            with open("a name\\n\\x1b[2J" + "x" * 200, "w"):
                pass
            deep = 0
            try:
                while deep < 400:
                    os.mkdir("d" * 200)
                    os.chdir("d" * 200)
                    deep += 1
            except OSError:
                pass
            try:
                os.rename(here, here + "-" + planted["name"])
                os.symlink(planted["folder"], here)
            except OSError:
                pass
            return "HELD: the test looks whether all of it is gone, and nothing else"
        """,
    ),
)
