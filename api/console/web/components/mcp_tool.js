// A tool of an MCP server: whether its calls need approval, its agents, and a form to try it.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { agentIdOf } from "../lib/find_by_id.js";
import { firstArguments } from "../lib/mcp_servers.js";
import { Flaws, readArguments } from "./arguments_editor.js";
import { AgentName, Failure } from "./basics.js";
import { JsonView } from "./json_view.js";

/** @typedef {import("../lib/mcp_servers.js").McpTool} McpTool */

/** @param {{path: string, tool: McpTool, onChanged: () => void}} props `path`: of the server, in the API */
export function McpToolCard({ path, tool, onChanged }) {
  const facts = [
    tool.default_requires_approval ? "waits for a person" : "needs no approval",
    tool.idempotent && "may be started again",
    ...tool.tags,
  ].filter(Boolean);
  return html`<article class="panel" aria-labelledby=${`title-${tool.id}`}>
    <h3 id=${`title-${tool.id}`}><code>${tool.name}</code></h3>
    <p>${tool.description}</p>
    <p class="quiet-text">${facts.join(" · ")}</p>
    <${JsonView} value=${parametersOf(tool)} label="Parameters" open=${false} />
    <${AskFirst} tool=${tool} onChanged=${onChanged} />
    <${GiveToAgent} tool=${tool} />
    <details class="folded">
      <summary>Try it</summary>
      <${TryOut} path=${path} tool=${tool} />
    </details>
  </article>`;
}

/** @param {McpTool} tool @returns {Record<string, any>} */
function parametersOf(tool) {
  return tool.json_schema?.parameters ?? {};
}

/** @param {{tool: McpTool, onChanged: () => void}} props */
function AskFirst({ tool, onChanged }) {
  const { error, isBusy, perform } = useAct();
  const change = (/** @type {any} */ event) => {
    const { checked } = event.currentTarget;
    return perform(async () => {
      await request("PATCH", `/v1/tools/${tool.id}`, { body: { default_requires_approval: checked } });
      onChanged();
    });
  };
  return html`
    <label class="inline">
      <input type="checkbox" checked=${Boolean(tool.default_requires_approval)} disabled=${isBusy} onChange=${change} />
      A person decides on each call
    </label>
    <${Failure} error=${error} />
  `;
}

/** @param {{tool: McpTool}} props */
function GiveToAgent({ tool }) {
  const [wanted, setWanted] = useState("");
  const [given, setGiven] = useState("");
  const { error, isBusy, perform } = useAct();
  /** @param {Event} event */
  const give = (event) => {
    event.preventDefault();
    setGiven("");
    return perform(async () => {
      const agentId = await agentIdOf(wanted);
      await request("PATCH", `/v1/agents/${encodeURIComponent(agentId)}/tools/attach/${tool.id}`);
      setGiven(agentId);
      setWanted("");
    });
  };
  return html`
    <form class="filters" onSubmit=${give}>
      <label>Agent that gets ${tool.name}
        <input required value=${wanted} placeholder="name or agent-…" spellcheck=${false}
          onInput=${(/** @type {any} */ event) => setWanted(event.currentTarget.value)} />
      </label>
      <button type="submit" disabled=${isBusy}>Give it to the agent</button>
      <${Failure} error=${error} />
    </form>
    <p class="note" role="status">${given !== "" && html`<${AgentName} id=${given} /> has it now.`}</p>
  `;
}

/** @param {{path: string, tool: McpTool}} props */
function TryOut({ path, tool }) {
  const [text, setText] = useState(() => JSON.stringify(firstArguments(parametersOf(tool)), null, 2));
  const [result, setResult] = useState(/** @type {{status: string, func_return: string} | null} */ (null));
  const { error, isBusy, perform } = useAct();
  const { value, flaws } = readArguments(text, parametersOf(tool));
  /** @param {Event} event */
  const run = (event) => {
    event.preventDefault();
    if (value === null || flaws.length > 0) return;
    setResult(null);
    perform(async () => setResult(await request("POST", `${path}/tools/${tool.id}/run`, { body: { args: value } })));
  };
  const name = `try-${tool.id}`;
  return html`
    <form class="decision-form" onSubmit=${run}>
      <p class="quiet-text">The server runs the tool at once, without an approval.</p>
      <label for=${name}>Arguments of ${tool.name} (JSON)</label>
      <textarea id=${name} class="code" rows=${Math.min(12, text.split("\n").length + 1)} spellcheck=${false}
        aria-invalid=${flaws.length > 0} aria-describedby=${`${name}-flaws`} value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)} />
      <div id=${`${name}-flaws`} role="status"><${Flaws} flaws=${flaws} parameters=${parametersOf(tool)} /></div>
      <div class="buttons">
        <button type="submit" disabled=${isBusy || flaws.length > 0}>${isBusy ? "Running…" : "Run it"}</button>
      </div>
    </form>
    <${Failure} error=${error} />
    <div role="status">
      ${result !== null &&
      html`<p>${result.status === "success" ? "It returned:" : "It answered with an error:"}</p>
        <pre tabindex="0" aria-label=${`Result of ${tool.name}`}>${result.func_return}</pre>`}
    </div>
  `;
}

/** Runs one action at a time, and keeps the error of the last one. */
function useAct() {
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  /** @param {() => Promise<void>} act */
  const perform = async (act) => {
    if (isBusy) return;
    setIsBusy(true);
    setError(null);
    try {
      await act();
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    } finally {
      setIsBusy(false);
    }
  };
  return { error, isBusy, perform };
}
