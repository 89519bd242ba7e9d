// One MCP server: whether its list could be read, and its tools, which a person can try, attach to agents, and guard.

import { html, useState } from "../html.js";
import { Empty, Failure, Id, Time } from "../components/basics.js";
import { Confirm } from "../components/dialog.js";
import { McpToolCard } from "../components/mcp_tool.js";
import { request } from "../lib/api.js";
import { placeOf, toldChanges, TYPES } from "../lib/mcp_servers.js";
import { usePolled } from "../lib/polling.js";
import { go, href } from "../lib/routing.js";

/** @typedef {import("../lib/mcp_servers.js").McpServer} McpServer */
/** @typedef {import("../lib/mcp_servers.js").McpTool} McpTool */

const EVERY_MS = 10_000;

/** @param {import("../app.js").PageProps} props */
export function McpServerPage({ params }) {
  const path = `/v1/mcp-servers/${encodeURIComponent(params.id)}`;
  const { data, error, reload } = usePolled(
    async (signal) => {
      const [server, tools] = await Promise.all([
        request("GET", path, { signal }),
        request("GET", `${path}/tools`, { signal }),
      ]);
      return { server: /** @type {McpServer} */ (server), tools: /** @type {McpTool[]} */ (tools) };
    },
    EVERY_MS,
    [params.id],
  );
  if (data.value === undefined) {
    return html`<h1>MCP server</h1>
      <${Failure} error=${error.value} retry=${reload} />
      ${error.value
        ? html`<p><a href=${href("/mcp-servers")}>Show all servers</a></p>`
        : html`<p role="status">The server is being fetched.</p>`}`;
  }
  const { server, tools } = data.value;
  return html`
    <h1 class="agent-name" title=${server.server_name}>${server.server_name}</h1>
    <p class="facts-line"><${Id} id=${server.id} /> <a href=${href("/mcp-servers")}>All servers</a></p>
    <${Failure} error=${error.value} retry=${reload} />
    <section class="panel" aria-label="The server">
      <${Facts} server=${server} />
      <${Acts} server=${server} count=${tools.length} onChanged=${reload} />
    </section>
    <section aria-labelledby="tools-title">
      <h2 id="tools-title">Tools</h2>
      ${tools.length === 0 &&
      html`<${Empty} title="The project has no tools of it">
        <p>${server.problem ? "Its list could not be read: refresh it when the server is there." : "It lists none."}</p>
      <//>`}
      ${tools.map((tool) => html`<${McpToolCard} key=${tool.id} path=${path} tool=${tool} onChanged=${reload} />`)}
    </section>
  `;
}

/** @param {{server: McpServer}} props */
function Facts({ server }) {
  return html`
    <dl class="facts">
      <div><dt>Type</dt><dd>${TYPES[server.mcp_server_type]}</dd></div>
      <div><dt>Address</dt><dd>${placeOf(server)}</dd></div>
      <div><dt>List read</dt><dd>${server.refreshed_at ? html`<${Time} at=${server.refreshed_at} />` : "never"}</dd></div>
    </dl>
    ${server.problem &&
    html`<div class="failure"><p>Its list could not be read the last time: ${server.problem}</p></div>`}
  `;
}

/** @param {{server: McpServer, count: number, onChanged: () => void}} props */
function Acts({ server, count, onChanged }) {
  const [said, setSaid] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  const [isDeleting, setIsDeleting] = useState(false);
  /** @param {() => Promise<string>} act */
  const perform = async (act) => {
    setIsBusy(true);
    setError(null);
    setSaid("");
    try {
      setSaid(await act());
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    } finally {
      setIsBusy(false);
      onChanged();
    }
  };
  const refresh = async () => toldChanges(await request("PATCH", `/v1/mcp-servers/${server.id}/refresh`));
  const remove = async () => {
    setIsDeleting(false);
    await request("DELETE", `/v1/mcp-servers/${server.id}`);
    go("/mcp-servers");
    return "";
  };
  return html`
    <div class="buttons">
      <button type="button" disabled=${isBusy} onClick=${() => perform(refresh)}>${isBusy ? "Working…" : "Refresh its tools"}</button>
      <button type="button" class="danger" disabled=${isBusy} onClick=${() => setIsDeleting(true)}>Delete the server…</button>
    </div>
    <p class="note" role="status">${said}</p>
    <${Failure} error=${error} />
    ${isDeleting &&
    html`<${Confirm} title=${`Delete ${server.server_name}`} action="Delete it and its tools" onConfirm=${() => perform(remove)}
      onClose=${() => setIsDeleting(false)}>
      <p>
        ${count === 1 ? "Its tool is" : `Its ${count} tools are`} deleted as well, and taken from every agent that has
        them. Calls that run end as they do; later ones say that the server is no longer there.
      </p>
    <//>`}
  `;
}
