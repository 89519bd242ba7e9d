"""Tools that leave something behind for the next call: in files, in modules, in the interpreter, in shared state."""

from tests.security.hostile.hostile_tool import HostileTool

POISON = (
    HostileTool(
        "modules",
        "replaces parts of modules that the next call uses",
        """
        def tool(planted):
            import builtins, importlib, json, linecache, os, random, sys, types
            for module in list(sys.modules.values()):
                for name in list(vars(module)) if isinstance(module, types.ModuleType) else []:
                    if isinstance(getattr(module, name, None), types.FunctionType) and module.__name__ != __name__:
                        try:
                            setattr(module, name, lambda *_, **__: "poisoned")
                        except Exception:
                            pass
            builtins.poisoned = True
            sys.modules["poisoned"] = types.ModuleType("poisoned")
            sys.path.insert(0, "/tmp/poisoned")
            return "HELD: the test looks at the next call"
        """,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "objects_in_place",
        "changes constants of the interpreter where they lie in memory",
        """
        def tool(planted):
            import sys
            def set_number(value, wanted):
                offset = 24
                ctypes.c_uint32.from_address(id(value) + offset).value = wanted
            set_number(200, 7)
            sys.intern("poisoned")
            type.__getattribute__
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))
            return "HELD: the test looks at the next call"
        """,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "state_of_the_process",
        "changes what children inherit: limits, priority, mask, handlers, folder, environment, personality",
        """
        def tool(planted):
            import resource, signal
            os.environ["POISONED"] = "1"
            steps = [lambda: os.umask(0o777), lambda: os.nice(19), lambda: os.chdir("/"),
                     lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
                     lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
                     lambda: LIBC.personality(0x0040000), lambda: LIBC.prctl(4, 0, 0, 0, 0),
                     lambda: os.setpgid(0, 0), lambda: os.setpriority(os.PRIO_PGRP, 0, 19)]
            steps += [lambda kind=kind: resource.setrlimit(kind, (1, 1)) for kind in (0, 1, 2, 6, 7)]
            steps += [lambda n=n: signal.signal(n, signal.SIG_IGN) for n in signal.valid_signals()]
            for step in steps:
                try:
                    step()
                except (OSError, ValueError):
                    pass
            return "HELD: the test looks at the next call"
        """,
        says=False,
        open_without_walls=False,
    ),
    HostileTool(
        "files_that_python_loads",
        "leaves modules where the next interpreter looks for them: its folder, its home, its packages",
        """
        def tool(planted):
            version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            folders = [planted["folder"], planted["folder"] + f"/.local/lib/{version}/site-packages",
                       planted["prefix"] + f"/lib/{version}/site-packages", planted["base_prefix"] + f"/lib/{version}",
                       planted["base_prefix"] + f"/lib/{version}/site-packages", planted["checkout"],
                       planted["checkout"] + "/worker/tools/guest", sys.prefix, os.path.dirname(os.__file__)]
            def leave_in(folder, name):
                os.makedirs(folder, exist_ok=True)
                path = f"{folder}/{name}"
                with open(path, "w") as file:
                    file.write("import sys")
                return "left"
            return verdict({f"{folder}/{name}": lambda folder=folder, name=name: leave_in(folder, name)
                            for folder in dict.fromkeys(folders) if not folder.startswith("/tmp/")
                            for name in ("sitecustomize.py", "usercustomize.py", "hostile.pth", "json.py")})
        """,
    ),
    HostileTool(
        "compiled_files",
        "puts compiled code where the interpreter finds it instead of the source",
        """
        def tool(planted):
            import glob, importlib.util, json
            version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            folders = [os.path.dirname(os.__file__) + "/__pycache__",
                       planted["checkout"] + "/worker/tools/guest/__pycache__",
                       planted["prefix"] + f"/lib/{version}/site-packages/__pycache__",
                       planted["base_prefix"] + f"/lib/{version}/json/__pycache__"]
            def leave_in(folder):
                os.makedirs(folder, exist_ok=True)
                with open(f"{folder}/hostile.{sys.implementation.cache_tag}.pyc", "wb") as file:
                    file.write(b"x")
                return "left"
            return verdict({folder: lambda folder=folder: leave_in(folder) for folder in folders
                            if not folder.startswith("/tmp/")})  # a tool may have a folder /tmp of its own
        """,
    ),
    HostileTool(
        "interpreter_itself",
        "replaces the interpreter, the files of its environment and the links to them",
        """
        def tool(planted):
            def append(path):
                with open(path, "ab") as file:
                    return file.write(b"") == 0 and "open for writing"
            def swap(path):
                os.rename(path, path + ".hostile")
                os.rename(path + ".hostile", path)
                return "renamed"
            paths = [planted["prefix"] + "/pyvenv.cfg", planted["prefix"] + "/bin/python", sys.executable, json_file()]
            return verdict({f"write {path}": lambda path=path: append(path) for path in paths}
                           | {f"rename {path}": lambda path=path: swap(path) for path in paths})

        def json_file():
            import json
            return json.__file__
        """,
    ),
    HostileTool(
        "caches_of_packages",
        "writes into the folders where packages are kept for later",
        """
        def tool(planted):
            home = planted["folder"]
            folders = [home + "/.cache/pip", home + "/.cache/uv", home + "/.config/pip", home + "/.npm",
                       "/root/.cache/pip", "/var/cache/holdfast", "/var/lib/holdfast", home + "/packages", *sys.path]
            def leave_in(folder):
                os.makedirs(folder, exist_ok=True)
                with open(f"{folder}/{planted['name']}", "w") as file:
                    file.write("x")
                return "left"
            return verdict({folder: lambda folder=folder: leave_in(folder) for folder in folders
                            if folder and not folder.startswith(os.getcwd())})
        """,
    ),
    HostileTool(
        "its_own_packages",
        "changes the package that it imports, for whoever imports it next: its code, its compiled code, its names",
        """
        def tool(planted):
            import planted as package
            def changed(folder):
                os.chmod(folder, 0o700)
                os.chmod(folder + "/__init__.py", 0o600)
                with open(folder + "/__init__.py", "a") as file:
                    file.write("HELD = False")
                return "written"
            def added(folder, name):
                os.chmod(folder, 0o700)
                with open(f"{folder}/{name}", "w") as file:
                    file.write("HELD = False")
                return "added"
            def swapped(folder):
                os.chmod(os.path.dirname(folder), 0o700)
                os.rename(folder, folder + ".hostile")
                os.rename(folder + ".hostile", folder)
                return "renamed"
            def linked(folder):
                os.chmod(os.path.dirname(folder), 0o700)
                os.symlink("/tmp", os.path.dirname(folder) + "/" + planted["name"])
                return "linked"
            attempts = {}
            for folder in (os.path.dirname(package.__file__), planted["packages"] + "/planted"):
                attempts |= {
                    f"{folder}: code": lambda folder=folder: changed(folder),
                    f"{folder}: module": lambda folder=folder: added(folder, "more.py"),
                    f"{folder}: compiled": lambda folder=folder: added(folder + "/__pycache__", "more.pyc"),
                    f"{folder}: name": lambda folder=folder: swapped(folder),
                    f"{folder}: link": lambda folder=folder: linked(folder),
                }
            return verdict(attempts)
        """,
    ),
    HostileTool(
        "where_packages_are_kept",
        "puts an environment where a later one will be looked for, and takes the locks of those who build",
        """
        def tool(planted):
            import fcntl
            environment = os.path.dirname(planted["packages"])
            above = os.path.dirname(environment)
            def made():
                os.mkdir(above + "/" + "0" * 32)
                return "made"
            def locked(path):
                with open(path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
                return "locked"
            def listed():
                return os.listdir(above) or None
            return verdict({"make": made, "lock": lambda: locked(environment + ".lock"), "list": listed,
                            "lock of all": lambda: fcntl.flock(os.open(above, os.O_RDONLY), fcntl.LOCK_SH) or "locked"})
        """,
    ),
    HostileTool(
        "names_of_the_next_call",
        "takes the names that the next call will want: of folders, of sockets, of locks",
        """
        def tool(planted):
            import fcntl, glob, tempfile
            above = os.path.dirname(os.getcwd())
            def other_folders():
                return [path for path in glob.glob(above + "/*tool*") if path != os.getcwd() and os.access(path, 2)]
            def beside():
                path = above + "/" + planted["name"]
                os.mkdir(path)
                return None  # the test looks whether that was a folder of others
            return verdict({"folders": lambda: other_folders() or None, "beside": beside})
        """,
    ),
)
