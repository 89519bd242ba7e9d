"""Tools that have a network, by which the operator allows `localhost` on one port, and want more than that."""

from dataclasses import replace

from tests.security.hostile.hostile_tool import HostileTool

PROXY = '''
import socket

def proxy_port():
    return int(os.environ["http_proxy"].rpartition(":")[2])

def ask(*pieces, seconds=5):
    """What the proxy says to a request, sent in pieces."""
    with socket.create_connection(("127.0.0.1", proxy_port()), seconds) as connection:
        for piece in pieces:
            connection.sendall(piece.encode() if isinstance(piece, str) else piece)
        answer = b""
        try:
            while b"\\r\\n\\r\\n" not in answer and (data := connection.recv(4096)):
                answer += data
            answer += connection.recv(4096) if b" 200 " in answer[:20] else b""
        except TimeoutError:
            pass
        return answer

def got(*pieces):
    """Whether a request came to a service that is not allowed: they all say a word."""
    answer = ask(*pieces)
    return answer if b"PONG" in answer else None
'''


TOOLS = (
    HostileTool(
        "past_the_proxy",
        "connects to services of this machine by itself, and sends datagrams",
        """
        def tool(planted):
            def talk(host, port):
                with socket.create_connection((host, port), 2) as connection:
                    return connection.recv(64) or "connected"
            def send():
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
                    return connection.sendto(b"PING", ("127.0.0.1", planted["port"]))
            names = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "127.7.7.7", planted["metadata"])
            numbers = (6379, 5432, planted["allowed"])
            ports = {f"port {port}": lambda port=port: talk("127.0.0.1", port) for port in numbers}
            return verdict({name: lambda name=name: talk(name, planted["port"]) for name in names} | ports
                           | {"datagram": send})
        """,
        open_without_walls=True,
    ),
    HostileTool(
        "every_spelling",
        "asks the proxy for a service of this machine, by each of its names and numbers",
        """
        def tool(planted):
            port = planted["port"]
            hosts = ["127.0.0.1", "localhost", "LOCALHOST.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0",
                     "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]", "127.0.0.1.", "127.000.000.1",
                     "localhost.localdomain", "ip6-localhost", planted["metadata"], "localhost@127.0.0.1",
                     "127.0.0.1#", "localhost%00", "localhost\\t127.0.0.1", "", os.uname().nodename]
            attempts = {}
            for host in hosts:
                for line in (f"CONNECT {host}:{port}", f"GET http://{host}:{port}/"):
                    attempts[line] = lambda line=line: got(line + " HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            return verdict(attempts)
        """,
        open_without_walls=False,
        timeout_s=60.0,
    ),
    HostileTool(
        "smuggle",
        "hides a second destination in a request for an allowed one",
        """
        def tool(planted):
            port, allowed = planted["port"], planted["allowed"]
            inner = f"GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n"
            host = f"Host: 127.0.0.1:{port}\\r\\n"
            length = "Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"
            return verdict({
                "host": lambda: got(f"GET http://localhost:{allowed}@127.0.0.1:{port}/ HTTP/1.1\\r\\n{host}\\r\\n"),
                "origin form": lambda: got(f"GET / HTTP/1.1\\r\\n{host}\\r\\n"),
                "two hosts": lambda: got(f"GET / HTTP/1.1\\r\\n{host}Host: localhost:{allowed}\\r\\n\\r\\n"),
                "pipelined": lambda: got(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" + inner),
                "lengths": lambda: got(f"POST http://localhost:{port}/ HTTP/1.1\\r\\n{host}{length}{inner}"),
                "line feeds": lambda: got(f"CONNECT localhost:{allowed}\\n127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n"),
                "in a name": lambda: got(f"CONNECT localhost:{allowed}:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"),
                "port": lambda: got(f"CONNECT localhost:{allowed + 65536} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"),
            })
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "other_sockets",
        "opens every kind of socket but the one that it may, and makes that one into more",
        """
        def tool(planted):
            families = {"netlink": (16, 3, 0), "packet": (17, 3, 0), "alg": (38, 5, 0), "vsock": (40, 1, 0),
                        "raw": (2, 3, 1), "ping": (2, 2, 1), "datagram": (2, 2, 0), "inet6": (10, 1, 0),
                        "multipath": (2, 1, 262), "sctp": (2, 1, 132), "smc": (2, 1, 256), "smc family": (43, 1, 0),
                        "unix": (1, 1, 0), "unix datagram": (1, 2, 0), "sequenced": (2, 5, 0), "dccp": (2, 6, 33),
                        "wide": (2 | 1 << 32, 2, 0), "tipc": (30, 1, 0), "rds": (21, 5, 0), "xdp": (44, 3, 0)}
            made = socket.socket()
            address = b"\\x02\\x00" + (planted["port"]).to_bytes(2, "big") + b"\\x7f\\x00\\x00\\x01" + bytes(8)
            def fast_open():
                return made.sendto(b"PING", 0x20000000, ("127.0.0.1", planted["port"]))
            def pair_elsewhere():
                one, other = socket.socketpair()
                other.close()
                one.connect(planted["abstract"])
                return one.recv(64)
            return verdict({name: lambda kind=kind: kernel((41, 198), *kind) for name, kind in families.items()} | {
                "bind": lambda: made.bind(("127.0.0.1", 0)) or True,
                "listen": lambda: made.listen() or True,
                "accept": lambda: kernel((288, 242), made.fileno(), 0, 0, 0),
                "fast open": fast_open,
                "fast open by option": lambda: made.setsockopt(6, 30, 1) or True,
                "another protocol above": lambda: made.setsockopt(6, 31, b"tls") or True,
                "filter": lambda: made.setsockopt(1, 26, bytes(16)) or True,
                "options of IP": lambda: made.setsockopt(0, 4, bytes(4)) or True,
                "pair": pair_elsewhere,
                "descriptors": lambda: socket.send_fds(socket.socketpair()[0], [b"x"], [0]),
            })
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "scan_ports",
        "looks for somebody else in its network, other calls and their proxies among them",
        """
        def tool(planted):
            found, own = [], proxy_port()
            for port in range(1, 65536):
                with socket.socket() as connection:
                    if port != own and connection.connect_ex(("127.0.0.1", port)) == 0:
                        found.append(port)
            return f"ESCAPED: {found}" if found else "HELD: nobody"
        """,
        open_without_walls=False,
        timeout_s=60.0,
    ),
    HostileTool(
        "floods",
        "asks a thousand times, and has requests that never end",
        """
        def tool(planted):
            begun, refused = [], 0
            for number in range(100):
                try:
                    connection = socket.create_connection(("127.0.0.1", proxy_port()), 0.2)
                    connection.sendall(b"GET http://" + b"a" * number)
                    begun.append(connection)
                except OSError:
                    refused += 1
            for connection in begun:
                connection.close()
            for _ in range(100):
                ask(b"CONNECT 127.0.0.1:1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            ask(b"GET http://x/ HTTP/1.1\\r\\n" + b"A: b\\r\\n" * 200_000, seconds=1)
            return f"HELD: {refused} had to wait"
        """,
        open_without_walls=False,
        timeout_s=60.0,
    ),
    HostileTool(
        "connections_that_stay",
        "leaves tunnels to an allowed service open, in every state, when it ends",
        """
        def tool(planted):
            tunnel = f"CONNECT localhost:{planted['allowed']} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode()
            kept = planted.setdefault("kept", [])
            for number in range(12):
                connection = socket.create_connection(("127.0.0.1", proxy_port()), 5)
                connection.sendall(tunnel)
                if number % 3:
                    connection.recv(100)
                if number % 3 == 2:
                    connection.shutdown(socket.SHUT_WR)
                kept.append(connection)
            return "HELD: if none stays"
        """,
        open_without_walls=False,
    ),
    HostileTool(
        "more_than_anybody_reads",
        "sends through every tunnel that it gets, to a service that reads none of it",
        """
        def tool(planted):
            tunnel = f"CONNECT localhost:{planted['allowed']} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode()
            opened, sent, piece = [], 0, b"x" * (1 << 18)
            for _ in range(16):
                connection = socket.create_connection(("127.0.0.1", proxy_port()), 5)
                connection.sendall(tunnel)
                connection.recv(100)
                connection.settimeout(0.2)
                opened.append(connection)
            for connection in opened:
                try:
                    for _ in range(400):
                        sent += connection.send(piece)
                except OSError:
                    continue
            return f"HELD: {sent >> 20} MB"
        """,
        open_without_walls=False,
        alone=True,
        timeout_s=60.0,
    ),
)

NETWORK = tuple(replace(tool, prelude=PROXY, has_network=True) for tool in TOOLS)
