"""Tests at a worker's start whether JavaScript calls work on this machine, with the chosen isolation."""

import asyncio
import shutil
import subprocess

import msgspec
import structlog

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from worker.proxy.exchange import EgressDialer
from worker.tools.interpreter import NODE_LOOK, NodeProgram, answer_of, described_node
from worker.tools.isolated_sandbox import IsolatedSandbox
from worker.tools.outcomes import CallLimits, ToolInvocation, ToolSandbox
from worker.tools.sandbox_choice import PlainProcess, ProcessSandbox, not_held
from worker.tools.scratch import ToolFolders
from worker.tools.zygote import ZygotePlan

OFF = "off"
TRIAL_S = 10.0
TRIAL = """
import fs from "node:fs";
import net from "node:net";
import { spawnSync } from "node:child_process";

const connected = () => new Promise((resolve, reject) => {
  net.connect(9, "127.0.0.1").once("connect", resolve).once("error", reject);
});
const attempts = {
  "start a process": () => { const made = spawnSync(process.execPath, ["-v"]); if (made.error) throw made.error; },
  "open a socket": async () => { try { await connected(); } catch (e) { if (e.code !== "ECONNREFUSED") throw e; } },
  "read another's files": () => fs.readFileSync("/etc/passwd"),
  "look at the machine": () => fs.readdirSync("/"),
};

export async function tool(walls) {
  for (const [name, attempt] of Object.entries(walls ? attempts : {})) {
    let refused = false;
    try { await attempt(); } catch { refused = true; }
    if (!refused) return `a tool could ${name}`;
  }
  fs.writeFileSync("file", "a tool has its scratch directory");
  return "held";
}
"""
"""It runs in the memory of the sandbox. If that is too little for Node.js, the worker's start reports it, and not the
first call."""

_FOUND: dict[tuple[str, ZygotePlan | PlainProcess, CallLimits], str | None] = {}
"""The cached result for each Node.js: a machine does not change while a process is alive."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def find_node(setting: str, walls: ZygotePlan | PlainProcess, limits: CallLimits) -> NodeProgram | None:
    """Returns the Node.js that runs JavaScript calls. None, with a line in the log, if there is none that works.

    `setting`: a path, "off", or empty for the one on the PATH. `walls`: the isolation around it. Raises
    `InvalidRequest` if a Node.js that the setting names by its path does not work.
    """
    found = setting or shutil.which("node") or shutil.which("nodejs")
    if found is None or setting == OFF:
        log.info("javascript_tools_off", reason="HOLDFAST_TOOL_NODE=off" if found else "there is no Node.js")
        return None
    try:
        node = described_node(await asyncio.to_thread(answer_of, found, "-e", NODE_LOOK))
        key = (node.executable, walls, limits)
        if key not in _FOUND:
            _FOUND[key] = await trial(node, walls, limits)
        reason = _FOUND[key]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        node, reason = None, str(error)
    if reason is None:
        log.info("javascript_tools_run", node=found)
        return node
    if setting:
        raise InvalidRequest(f"HOLDFAST_TOOL_NODE: {setting} cannot run tools: {reason}; name another, or say off")
    log.warning("javascript_tools_off", node=found, reason=reason)
    return None


def sandbox_of(
    walls: ZygotePlan | PlainProcess,
    limits: CallLimits,
    node: NodeProgram | None,
    *,
    grace_s: float,
    folders: ToolFolders | None = None,
    reach: EgressDialer | None = None,
) -> ToolSandbox:
    """Returns the sandbox that runs calls in this isolation, in Python and, if there is a `node`, in JavaScript."""
    if isinstance(walls, PlainProcess):
        return ProcessSandbox(limits, grace_s=grace_s, python=walls.python, user=walls.user, node=node, folders=folders)
    walled = msgspec.structs.replace(walls, node=node)
    return IsolatedSandbox(walled, limits, grace_s=grace_s, folders=folders, reach=reach)


async def trial(node: NodeProgram, walls: ZygotePlan | PlainProcess, limits: CallLimits) -> str | None:
    """Makes a call. Returns None if it worked and the isolation held, otherwise the reason."""
    is_plain = isinstance(walls, PlainProcess)
    quick = walls if is_plain else msgspec.structs.replace(walls, preload=False)
    sandbox = sandbox_of(quick, limits, node, grace_s=1.0)
    invocation = ToolInvocation(
        ProjectId("trial"),
        TRIAL,
        "tool",
        {"walls": not is_plain},
        language="javascript",
        parameters=("walls",),
        timeout_s=TRIAL_S,
    )
    try:
        reason = not_held(await sandbox.call(invocation))
    finally:
        await sandbox.aclose()
    return reason and reason[:500]
