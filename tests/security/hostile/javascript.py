"""Tools in JavaScript that mean harm: what Node.js offers for it, against the same walls.

Most attacks of the other modules are made by system calls, and the walls do not ask who makes them. Here is what a
program of another kind adds: threads with heaps of their own, memory outside of the heap, an inspector, a program that
may be executed.
"""

from tests.security.hostile.hostile_javascript import HostileJavascript

JAVASCRIPT = (
    HostileJavascript(
        "js_child_process",
        "starts other programs, and itself",
        """
        async function tool(planted) {
          const { spawnSync, execSync, fork } = require("node:child_process");
          const ran = (made) => { if (made.error) throw made.error; return `status ${made.status}`; };
          const forked = () => new Promise((resolve, reject) => {
            fs.writeFileSync("child.js", "process.send('alive')");
            fork("./child.js").once("message", resolve).once("error", reject);
          });
          return verdict({
            "a shell": () => ran(spawnSync("/bin/sh", ["-c", "true"])),
            "itself": () => ran(spawnSync(process.execPath, ["-e", "1"])),
            "by the shell": () => execSync("id").toString(),
            "a fork": forked,
          });
        }
        """,
        open_without_walls=True,
    ),
    HostileJavascript(
        "js_execve",
        "becomes another program, in its place and in the place of the one that it may execute",
        """
        async function tool(planted) {
          if (!process.execve) return "HELD: this Node.js cannot";
          for (const path of ["/bin/sh", "/usr/bin/env", "/usr/bin/python3"]) {
            try {
              process.execve(path, ["sh", "-c", `sleep 20; : ${planted.tag}`], {});
            } catch (error) {
              if (!error.code) throw error;
            }
          }
          return "HELD: nothing was executed";
        }
        """,
    ),
    HostileJavascript(
        "js_sockets",
        "talks to the worker, to its neighbours and to the machine's metadata, and listens",
        """
        async function tool(planted) {
          const dgram = require("node:dgram"), http = require("node:http"), dns = require("node:dns");
          const sent = () => new Promise((resolve, reject) => {
            const socket = dgram.createSocket("udp4");
            socket.once("error", reject);
            socket.send("x", planted.port, "127.0.0.1", (error) => error ? reject(error) : resolve("sent"));
          });
          const listens = (...where) => new Promise((resolve, reject) => {
            net.createServer().once("error", reject).listen(...where, () => resolve("listens"));
          });
          const got = () => new Promise((resolve, reject) => {
            http.get({ host: planted.metadata || "127.0.0.1", port: planted.port }, resolve).once("error", reject);
          });
          return verdict({
            "loopback": () => connected(planted.port, "127.0.0.1"),
            "loopback 6": () => connected(planted.port, "::1"),
            "metadata": () => connected(planted.port, planted.metadata || "127.0.0.1"),
            "socket": () => connected(planted.socket),
            "abstract": () => connected(planted.abstract),
            "udp": sent,
            "listen": () => listens(0, "127.0.0.1"),
            "listen here": () => listens("own.sock"),
            "http": got,
            "in a thread": () => inWorker(`require("node:net").connect(${planted.port}, "127.0.0.1")
              .once("connect", () => require("node:worker_threads").parentPort.postMessage("connected"))`),
            "a resolver": () => new Promise((resolve, reject) => {
              const resolver = new dns.Resolver({ timeout: 200, tries: 1 });
              resolver.resolve4("metadata.google.internal", (e, found) => e ? reject(e) : resolve(found));
            }),
          });
        }
        """,
        open_without_walls=True,
    ),
    HostileJavascript(
        "js_inspector",
        "opens its debugger to the network, by itself and by a signal",
        """
        async function tool(planted) {
          const inspector = require("node:inspector");
          const opened = async () => {
            inspector.open(0, "127.0.0.1");
            return inspector.url();
          };
          process.kill(process.pid, "SIGUSR1");
          await sleep(200);
          return verdict({ "by a signal": () => inspector.url(), "by itself": opened });
        }
        """,
    ),
    HostileJavascript(
        "js_read",
        "reads what others keep: files of the worker and the machine, environments and memories of processes",
        """
        async function tool(planted) {
          const read = (path) => fs.readFileSync(path).length + 1;
          const paths = ["/etc/passwd", "/etc/hostname", planted.file, `${planted.checkout}/pyproject.toml`,
            `${planted.folder}/holdfast.db`, "/proc/1/environ", "/proc/self/environ", "/proc/self/maps",
            "/proc/self/mem", "/dev/shm/holdfast", "/sys/kernel/uevent_seqnum",
            ...planted.pids.flatMap((pid) => [`/proc/${pid}/environ`, `/proc/${pid}/mem`])];
          const folders = ["/", "/tmp/..", planted.folder, planted.checkout, "/proc", "/home", "/etc"];
          return verdict({
            ...Object.fromEntries(paths.map((path) => [path, () => read(path)])),
            ...Object.fromEntries(folders.map((path) => [path, () => fs.readdirSync(path).length])),
            "by a link": () => { fs.symlinkSync(planted.file, "link"); return read("link"); },
            "as a module": () => require(planted.file),
            "environment": () => JSON.stringify(process.env).includes("planted") && "a secret",
          });
        }
        """,
        open_without_walls=True,
    ),
    HostileJavascript(
        "js_write",
        "writes outside of its scratch directory, also as reports and snapshots",
        """
        async function tool(planted) {
          const name = planted.name, folders = [planted.folder, planted.prefix, "/var/tmp", "/dev/shm", "/run", "/"];
          const report = () => {
            const path = `${planted.folder}/${name}.json`;
            process.report.writeReport(path);
            return fs.existsSync(path);
          };
          return verdict({
            ...Object.fromEntries(folders.map((to) => [to, () => fs.writeFileSync(`${to}/${name}`, "x") ?? "written"])),
            "a report": report,
            "a snapshot": () => require("node:v8").writeHeapSnapshot(`${planted.folder}/${name}.heap`),
            "a hard link": () => fs.linkSync(planted.file, "hard") ?? "linked",
            "a removal": () => fs.unlinkSync(planted.file) ?? "removed",
            "another's mode": () => fs.chmodSync(planted.file, 0o666) ?? "changed",
          });
        }
        """,
    ),
    HostileJavascript(
        "js_kill",
        "signals other processes, and takes their priority",
        """
        async function tool(planted) {
          const pids = planted.pids.filter((pid) => ![process.pid, 0, 1].includes(pid));
          return verdict({
            ...Object.fromEntries(pids.map((pid) => [`kill ${pid}`, () => process.kill(pid, "SIGKILL")])),
            "everybody": () => process.kill(-1, "SIGKILL"),
            "its parent": () => process.ppid > 1 && process.kill(process.ppid, "SIGKILL"),
            "priority of others": () => pids.length && (os.setPriority(pids[0], 19) ?? "changed"),
          });
        }
        """,
    ),
    HostileJavascript(
        "js_identity",
        "becomes another user",
        """
        async function tool(planted) {
          return verdict({
            "user": () => process.setuid(0) ?? "set",
            "group": () => process.setgid(0) ?? "set",
            "groups": () => process.setgroups([0]) ?? "set",
          });
        }
        """,
    ),
    HostileJavascript(
        "js_native_code",
        "loads a library into the program",
        """
        async function tool(planted) {
          const { sharedObjects } = process.report.getReport();
          const library = sharedObjects.find((path) => path.includes("libm.")) ?? sharedObjects.at(-1);
          return verdict({ "dlopen": () => process.dlopen({ exports: {} }, library) ?? "loaded" });
        }
        """,
    ),
    HostileJavascript(
        "js_heap",
        "fills its heap",
        """
        async function tool(planted) {
          const held = [];
          for (let count = 0; count < 1500; count++) held.push(new Array(1 << 17).fill({ count }));
          return `ESCAPED: ${held.length} MB`;
        }
        """,
        alone=True,
    ),
    HostileJavascript(
        "js_buffers",
        "takes memory outside of its heap: buffers, shared buffers, memories of WebAssembly",
        """
        async function tool(planted) {
          const held = [], taken = {};
          const kinds = {
            buffers: () => Buffer.alloc(1 << 24, 1),
            shared: () => new Uint8Array(new SharedArrayBuffer(1 << 24)).fill(1),
            wasm: () => new Uint8Array(new WebAssembly.Memory({ initial: 256 }).buffer).fill(1),
          };
          for (const [name, make] of Object.entries(kinds)) {
            taken[name] = 0;
            try {
              for (; taken[name] < 1600; taken[name] += 16) held.push(make());
            } catch { /* as much as there is */ }
          }
          const total = Object.values(taken).reduce((a, b) => a + b);
          return `${total > 512 ? "ESCAPED" : "HELD"}: ${JSON.stringify(taken)} MB`;
        }
        """,
        alone=True,
    ),
    HostileJavascript(
        "js_threads",
        "starts threads, each with a heap of its own, until it cannot",
        """
        async function tool(planted) {
          let alive = 0;
          for (let count = 0; count < 200; count++) {
            const worker = new Worker(`const held = [];
              for (let n = 0; n < 40; n++) held.push(Buffer.alloc(1 << 20, 1));
              require("node:worker_threads").parentPort.postMessage(1); setInterval(() => held, 1000)`, { eval: true });
            worker.on("error", () => 0);
            worker.once("message", () => alive++);
          }
          await sleep(3000);
          return alive > 20 ? `ESCAPED: ${alive} threads` : `HELD: ${alive} threads`;
        }
        """,
        alone=True,
        says=False,
        timeout_s=15,
    ),
    HostileJavascript(
        "js_scratch",
        "fills its scratch directory, and more",
        """
        async function tool(planted) {
          const piece = Buffer.alloc(1 << 20, 1);
          let written = 0;
          try {
            for (let file = 0; file < 40; file++) {
              for (let part = 0; part < 10; part++, written++) fs.appendFileSync(`${planted.name}-${file}`, piece);
            }
          } catch (error) {
            return `HELD: ${error.code} at ${written} MB`;
          }
          await sleep(2000);
          return `ESCAPED: ${written} MB`;
        }
        """,
        alone=True,
        says=False,
    ),
    HostileJavascript(
        "js_spin",
        "burns the processor where no signal is looked at",
        """
        async function tool(planted) {
          process.on("SIGTERM", () => {});
          for (;;);
        }
        """,
        timeout_s=2,
    ),
    HostileJavascript(
        "js_deaf",
        "listens to its cancellation and does nothing, and never settles",
        """
        async function tool(planted) {
          process.removeAllListeners("SIGTERM");
          process.on("SIGTERM", () => {});
          process.on("SIGHUP", () => {});
          await new Promise(() => setInterval(() => 0, 100));
        }
        """,
        timeout_s=2,
    ),
    HostileJavascript(
        "js_at_exit",
        "goes on when its result is written: exit handlers, timers, threads",
        """
        async function tool(planted) {
          process.on("exit", () => { for (;;); });
          process.on("beforeExit", () => setTimeout(() => 0, 1000));
          setInterval(() => 0, 10);
          new Worker("for (;;);", { eval: true });
          return "HELD: the call must end";
        }
        """,
        timeout_s=5,
    ),
    HostileJavascript(
        "js_forged_frames",
        "writes results of the wrong shape to every descriptor, and closes them",
        """
        async function tool(planted) {
          const bodies = ["null", '{"status": 5, "text": []}', "[".repeat(100000), '{"status": "success"}'];
          for (let descriptor = 3; descriptor < 40; descriptor++) {
            for (const body of bodies) {
              const length = Buffer.alloc(4);
              for (const size of [body.length, 2 * body.length, 2 ** 31 - 1]) {
                length.writeUInt32BE(size);
                try { fs.writeSync(descriptor, Buffer.concat([length, Buffer.from(body)]), 0, 1000); } catch {}
              }
            }
          }
          process.reallyExit(0);
        }
        """,
        says=False,
    ),
    HostileJavascript(
        "js_replaced_functions",
        "replaces the functions by which its result is written",
        """
        async function tool(planted) {
          const nothing = () => { throw new Error("nothing"); };
          for (const owner of [fs, Buffer, JSON, String.prototype, Array.prototype, Object, Promise.prototype]) {
            for (const name of Object.getOwnPropertyNames(owner)) {
              try { owner[name] = nothing; } catch {}
            }
          }
          process.exit = process.reallyExit = nothing;
          return "HELD: the test looks at the others";
        }
        """,
        says=False,
        timeout_s=5,
    ),
    HostileJavascript(
        "js_flood",
        "writes half a gigabyte to its outputs",
        """
        async function tool(planted) {
          const piece = Buffer.alloc(1 << 20, 65);
          for (let count = 0; count < 512; count++) fs.writeSync(1 + (count % 2), piece);
          return "HELD: the test looks at what was kept";
        }
        """,
        alone=True,
    ),
    HostileJavascript(
        "js_giant_result",
        "returns a hundred megabytes",
        """
        async function tool(planted) {
          return "HELD" + "R".repeat(100 << 20);
        }
        """,
        alone=True,
        says=False,
    ),
    HostileJavascript(
        "js_unprintable",
        "returns and prints what no terminal or database should get, and throws what lies about itself",
        """
        async function tool(planted) {
          fs.writeSync(1, Buffer.from([0, 255, 254, 27, 91, 50, 74]));
          throw { get name() { throw new Error("\\0\\ud800"); }, toString() { return "\\ud800\\0"; } };
        }
        """,
        says=False,
    ),
)
