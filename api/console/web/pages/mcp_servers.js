// The project's MCP servers: the address of each, its number of tools, and whether its list could be read.

import { html, useEffect, useState } from "../html.js";
import { AddMcpServer } from "../components/add_mcp_server.js";
import { Empty, Failure, Id, Time } from "../components/basics.js";
import { request } from "../lib/api.js";
import { number } from "../lib/format.js";
import { pageOf, placeOf, TYPES } from "../lib/mcp_servers.js";
import { usePolled } from "../lib/polling.js";
import { go } from "../lib/routing.js";

/** @typedef {import("../lib/mcp_servers.js").McpServer} McpServer */

const EVERY_MS = 5000;

export function McpServersPage() {
  const { data, error, reload } = usePolled((signal) => request("GET", "/v1/mcp-servers", { signal }), EVERY_MS, []);
  const [isAdding, setIsAdding] = useState(false);
  /** @type {McpServer[] | undefined} */
  const servers = data.value;
  return html`
    <h1>MCP servers</h1>
    <p><button type="button" class="main-button" onClick=${() => setIsAdding(true)}>Add a server…</button></p>
    <${Failure} error=${error.value} retry=${reload} />
    ${servers === undefined && !error.value && html`<p role="status">The servers are being fetched.</p>`}
    ${servers?.length === 0 && html`<${NoServers} />`}
    ${servers !== undefined && servers.length > 0 && html`<${ServerTable} servers=${servers} />`}
    ${isAdding &&
    html`<${AddMcpServer} onClose=${() => setIsAdding(false)}
      onAdded=${(/** @type {McpServer} */ made) => go(`/mcp-servers/${made.id}`)} />`}
  `;
}

function NoServers() {
  return html`<${Empty} title="There are no MCP servers yet">
    <p>
      An MCP server offers tools of other authors. Add one, and its tools can be given to agents: a worker has
      the server run each call.
    </p>
  <//>`;
}

/** @param {{servers: McpServer[]}} props */
function ServerTable({ servers }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="MCP servers">
    <table>
      <thead>
        <tr>
          <th scope="col">Name</th><th scope="col">State</th><th scope="col" class="figure">Tools</th>
          <th scope="col">Type</th><th scope="col">Address</th><th scope="col">List read</th><th scope="col">Id</th>
        </tr>
      </thead>
      <tbody>
        ${servers.map(
          (server) => html`<tr key=${server.id}>
            <th scope="row"><a class="short-name" title=${server.server_name} href=${pageOf(server)}>${server.server_name}</a></th>
            <td class="state"><${Reading} server=${server} /></td>
            <td class="figure"><${ToolCount} server=${server} /></td>
            <td title=${TYPES[server.mcp_server_type]}>${server.mcp_server_type}</td>
            <td><span class="short-name" title=${placeOf(server)}>${placeOf(server)}</span></td>
            <td>${server.refreshed_at ? html`<${Time} at=${server.refreshed_at} />` : "never"}</td>
            <td><${Id} id=${server.id} /></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** Whether the last reading of the list succeeded. @param {{server: McpServer}} props */
function Reading({ server }) {
  if (server.problem) {
    return html`<span class="status status-bad">not read</span> <span class="short-name" title=${server.problem}>${server.problem}</span>`;
  }
  return html`<span class="status status-good">read</span>`;
}

/** The project's number of tools of a server; new after each reading of its list. @param {{server: McpServer}} props */
function ToolCount({ server }) {
  const [count, setCount] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    const ending = new AbortController();
    request("GET", `/v1/mcp-servers/${server.id}/tools`, { signal: ending.signal }).then(
      (tools) => setCount(tools.length),
      // The server may have been deleted; the next list will show that.
      () => undefined,
    );
    return () => ending.abort();
  }, [server.id, server.refreshed_at]);
  return number(count);
}
