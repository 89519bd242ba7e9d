"""A hostile tool in JavaScript, and what it may count on: as `hostile_tool.py` has it for Python."""

import textwrap
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from tests.security.hostile.hostile_tool import HostileTool
from worker.tools.outcomes import ToolInvocation

TOOLKIT = """
const fs = require("node:fs"), net = require("node:net"), os = require("node:os");
const { Worker } = require("node:worker_threads");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Makes each attempt. One that neither throws nor answers something false has worked. An error without a code that is
// no plain Error is the tool's own fault.
async function verdict(attempts) {
  const worked = [], refused = [];
  for (const [name, attempt] of Object.entries(attempts)) {
    try {
      const answer = await attempt();
      (answer ? worked : refused).push(`${name}: ${String(answer).slice(0, 120)}`);
    } catch (error) {
      if (!error.code && [TypeError, ReferenceError, SyntaxError].includes(error.constructor)) throw error;
      refused.push(`${name}: ${String(error).slice(0, 60)}`);
    }
  }
  return worked.length ? `ESCAPED: ${worked.join("; ")}` : `HELD: ${refused.join("; ")}`.slice(0, 500);
}

const connected = (...where) => new Promise((resolve, reject) => {
  const socket = net.connect(...where);
  socket.once("data", (data) => resolve(`heard ${data.length}`));
  socket.once("error", reject);
  setTimeout(() => reject(Object.assign(new Error("silence"), { code: "SILENCE" })), 2000).unref();
});
const inWorker = (code, options = {}) => new Promise((resolve, reject) => {
  const worker = new Worker(code, { eval: true, ...options });
  worker.once("message", resolve);
  worker.once("error", reject);
  worker.once("exit", () => reject(Object.assign(new Error("ended"), { code: "ENDED" })));
});
"""
LINGER = """
export async function hostile(planted) {
  const said = await tool(planted);
  while (planted.linger) await sleep(1000);
  return said;
}
"""


@dataclass(frozen=True)
class HostileJavascript(HostileTool):
    open_without_walls: bool = False

    def invocation(self, planted: dict[str, Any], *, linger: bool) -> ToolInvocation:
        source = TOOLKIT + textwrap.dedent(self.source) + LINGER
        call = super().invocation(planted, linger=linger)
        return replace(call, source_code=source, language="javascript", parameters=("planted",))
