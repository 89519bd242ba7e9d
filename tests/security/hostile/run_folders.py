"""Tools with a folder of their run that want those of other runs, and leave or keep more in it than they may."""

from dataclasses import replace

from tests.security.hostile.hostile_tool import HostileTool

RUN_FOLDERS = tuple(
    replace(tool, has_run_folder=True)
    for tool in (
        HostileTool(
            "folders_of_other_runs",
            "reads and changes what another run keeps in its folder",
            """
            def tool(planted):
                own = os.environ["HOLDFAST_RUN_FOLDER"]
                paths = list(planted["run_files"])
                paths += ["/run-folders/" + "/".join(path.split("/")[-2:]) for path in planted["run_files"]]
                attempts = {}
                for path in paths:
                    attempts[f"read {path}"] = lambda path=path: read(path)
                    attempts[f"write {path}"] = lambda path=path: open(path, "a").write("x")
                    attempts[f"remove {path}"] = lambda path=path: os.unlink(path) or True
                    attempts[f"move {path}"] = lambda path=path: os.rename(path, own + "/taken") or True
                    attempts[f"list {path}"] = lambda path=path: os.listdir(os.path.dirname(path)) or None
                def others(folder):
                    return [name for name in os.listdir(folder) if os.path.basename(own) != name] or None
                for folder in (own + "/..", own + "/../..", "/run-folders"):
                    attempts[f"others in {folder}"] = lambda folder=folder: others(folder)
                return verdict(attempts)
            """,
        ),
        HostileTool(
            "links_out_of_the_run_folder",
            "links files of the worker, and of another run, into the folder and reads them there",
            """
            def tool(planted):
                os.chdir(os.environ["HOLDFAST_RUN_FOLDER"])
                attempts = {}
                for number, path in enumerate([planted["file"], *planted["run_files"]]):
                    def linked(make, name, path=path):
                        make(path, name)
                        return read(name)
                    attempts[f"symbolic {path}"] = lambda number=number, linked=linked: linked(os.symlink, f"s{number}")
                    attempts[f"hard {path}"] = lambda number=number, linked=linked: linked(os.link, f"h{number}")
                return verdict(attempts)
            """,
        ),
        HostileTool(
            "special_files_in_the_run_folder",
            "makes devices, pipes and programs there, for whoever comes next",
            """
            def tool(planted):
                os.chdir(os.environ["HOLDFAST_RUN_FOLDER"])
                def program():
                    with open("program", "w") as file:
                        file.write("#!/bin/sh\\nexit 0\\n")
                    os.chmod("program", 0o4755)
                    os.execv("./program", ["program"])
                return verdict({
                    "device": lambda: os.mknod("device", 0o20666, os.makedev(1, 1)) or True,
                    "pipe": lambda: os.mkfifo("pipe") or True,
                    "program": program,
                    "owner": lambda: os.chown(".", 0, 0) or True,
                    "mount": lambda: kernel((165, 40), b"tmpfs", b".", b"tmpfs", 0, 0) == 0,
                    "cover away": lambda: kernel((166, 39), b"/run-folders", 2) == 0,
                })
            """,
            open_without_walls=False,
        ),
        HostileTool(
            "fill_the_run_folder",
            "writes more than a run may keep, in files that are each small enough",
            """
            def tool(planted):
                folder, written, piece = os.environ["HOLDFAST_RUN_FOLDER"], 0, b"x" * (1 << 20)
                for number in range(16):
                    with open(f"{folder}/{number}", "wb") as file:
                        for _ in range(16):
                            written += file.write(piece) >> 20
                if written > 200:
                    time.sleep(5)  # no file system bounds it, so somebody has to look
                return f"ESCAPED: {written} MB"
            """,
            alone=True,
            growth_mb=600,
        ),
        HostileTool(
            "what_cannot_be_removed",
            "leaves folders behind that are deep, closed and full of links",
            """
            def tool(planted):
                os.chdir(os.environ["HOLDFAST_RUN_FOLDER"])
                os.symlink("/", "everything")
                os.mkdir("closed")
                open("closed/file", "w").close()
                try:
                    os.chmod("closed", 0)
                except OSError:
                    pass
                for _ in range(1200):
                    os.mkdir("deep")
                    os.chdir("deep")
                return "HELD: if nothing is left"
            """,
            open_without_walls=False,
        ),
    )
)
