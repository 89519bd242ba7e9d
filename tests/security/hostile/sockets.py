"""Tools that talk to somebody: services of this machine, the kernel, or other tools, by every family of sockets."""

from tests.security.hostile.hostile_tool import HostileTool

SOCKETS = (
    HostileTool(
        "service_on_loopback",
        "talks to Redis, or any service on this machine, under each of its names",
        """
        def tool(planted):
            import socket
            def talk(host):
                with socket.create_connection((host, planted["port"]), 2) as connection:
                    connection.sendall(b"PING\\r\\n")
                    return connection.recv(64) or "connected"
            def send():
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
                    return connection.sendto(b"PING", ("127.0.0.1", planted["port"]))
            names = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::ffff:127.0.0.1", "127.7.7.7")
            return verdict({name: lambda name=name: talk(name) for name in names} | {"datagram": send})
        """,
    ),
    HostileTool(
        "metadata",
        "asks the address where clouds serve a machine's keys",
        """
        def tool(planted):
            import socket
            def ask():
                with socket.create_connection((planted["metadata"], planted["port"]), 2) as connection:
                    connection.sendall(b"GET /latest/meta-data/iam/ HTTP/1.0\\r\\n\\r\\n")
                    return connection.recv(64) or "connected"
            return verdict({"metadata": ask})
        """,
    ),
    HostileTool(
        "connect_by_other_calls",
        "sends its first words along with the connection, or connects without waiting",
        """
        def tool(planted):
            import select, socket
            def fast_open():
                with socket.socket() as connection:
                    return connection.sendto(b"PING", 0x20000000, ("127.0.0.1", planted["port"]))
            def later():
                with socket.socket() as connection:
                    connection.setblocking(False)
                    error = connection.connect_ex(("127.0.0.1", planted["port"]))
                    if error not in (0, 115):
                        raise OSError(error, "connect")
                    select.select([], [connection], [], 2)
                    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error:
                        raise OSError(error, "connected")
                    return "connected"
            return verdict({"with data": fast_open, "later": later})
        """,
    ),
    HostileTool(
        "socket_in_a_folder",
        "talks to a service through its socket in a folder, also by another name of that folder",
        """
        def tool(planted):
            import socket
            def talk(path):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(path)
                    return connection.recv(64) or "connected"
            def by_link():
                os.symlink(planted["socket"], "link")
                return talk("link")
            def from_its_folder():
                os.chdir(os.path.dirname(planted["socket"]))
                return talk(os.path.basename(planted["socket"]))
            return verdict({"path": lambda: talk(planted["socket"]), "link": by_link, "its folder": from_its_folder})
        """,
    ),
    HostileTool(
        "socket_without_a_file",
        "talks to a service through an abstract socket",
        """
        def tool(planted):
            import socket
            def talk():
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(planted["abstract"])
                    return connection.recv(64) or "connected"
            return verdict({"abstract": talk})
        """,
    ),
    HostileTool(
        "families",
        "opens sockets of families that speak to the kernel or to other machines",
        """
        def tool(planted):
            import socket
            families = {"netlink": (16, 3, 0), "packet": (17, 3, 0), "packet of all": (17, 2, 768), "alg": (38, 5, 0),
                        "vsock": (40, 1, 0), "raw": (2, 3, 1), "ping": (2, 2, 1), "can": (29, 3, 1), "key": (15, 3, 2),
                        "bluetooth": (31, 3, 1), "tipc": (30, 1, 0), "rds": (21, 5, 0), "xdp": (44, 3, 0),
                        "smc": (43, 1, 0), "nfc": (39, 3, 0), "qipcrtr": (42, 2, 0), "x25": (9, 5, 0)}
            def make(family):
                return kernel((41, 198), *family)
            return verdict({name: lambda family=family: make(family) for name, family in families.items()})
        """,
    ),
    HostileTool(
        "inherited_descriptors",
        "uses what the worker has left open: files, sockets, devices",
        """
        def tool(planted):
            import socket, stat
            found = {}
            for number in range(0, 1024):
                try:
                    state = os.fstat(number)
                except OSError:
                    continue
                if stat.S_ISSOCK(state.st_mode):
                    found[number] = "a socket"
                elif stat.S_ISDIR(state.st_mode):
                    found[number] = "a folder"
                elif stat.S_ISREG(state.st_mode):
                    found[number] = f"a file: {os.pread(number, 100, 0)!r}"
                elif stat.S_ISCHR(state.st_mode) and os.isatty(number):
                    found[number] = "a terminal"
            return f"ESCAPED: {found}" if found else "HELD: nothing but pipes"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "pass_descriptors",
        "sends descriptors over every socket that it finds, and takes what it is sent",
        """
        def tool(planted):
            import array, socket
            done = {}
            for number in range(0, 256):
                try:
                    with socket.socket(fileno=os.dup(number)) as found:
                        found.setblocking(False)
                        kind = (found.family, found.type)
                        for step in ("send", "take"):
                            try:
                                if step == "send":
                                    socket.send_fds(found, [b"{}"], [0, 1])
                                else:
                                    socket.recv_fds(found, 4096, 8)
                                done[f"{step} {number}"] = kind
                            except BlockingIOError:
                                done[f"{step} {number}"] = kind
                            except OSError:
                                pass
                except OSError:
                    continue
            return f"ESCAPED: {done}" if done else "HELD: no socket"
        """,
        open_without_walls=False,
    ),
)
