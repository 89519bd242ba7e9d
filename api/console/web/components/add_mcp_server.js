// Registers an MCP server: its address, and its secrets.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { linesIn, pairsIn, TYPES } from "../lib/mcp_servers.js";
import { Failure } from "./basics.js";
import { Dialog } from "./dialog.js";

/** @typedef {import("../lib/mcp_servers.js").McpServer} McpServer */
/** @typedef {{name: string, type: string, url: string, token: string, headers: string, command: string, args: string,
 *   env: string}} Form */

/** @type {Form} */
const BLANK = { name: "", type: "streamable_http", url: "", token: "", headers: "", command: "", args: "", env: "" };

/** @param {{onAdded: (server: McpServer) => void, onClose: () => void}} props */
export function AddMcpServer({ onAdded, onClose }) {
  const [form, setForm] = useState(BLANK);
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isSending, setIsSending] = useState(false);
  /** @param {keyof Form} field */
  const into = (field) => (/** @type {any} */ event) => {
    const { value } = event.currentTarget;
    setForm((now) => ({ ...now, [field]: value }));
  };
  /** @param {Event} event */
  const add = async (event) => {
    event.preventDefault();
    if (isSending) return;
    setError(null);
    setIsSending(true);
    try {
      onAdded(await request("POST", "/v1/mcp-servers", { body: bodyOf(form) }));
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
      setIsSending(false);
    }
  };
  return html`
    <${Dialog} title="Add an MCP server" onClose=${onClose}>
      <form class="stack" onSubmit=${add}>
        <label>Name
          <input required maxlength="200" value=${form.name} onInput=${into("name")} />
        </label>
        <label>Type
          <select value=${form.type} onChange=${into("type")}>
            ${Object.entries(TYPES).map(([type, title]) => html`<option value=${type}>${title}</option>`)}
          </select>
        </label>
        ${form.type === "stdio" ? html`<${OfCommand} form=${form} into=${into} />` : html`<${OfAddress} form=${form} into=${into} />`}
        <p class="quiet-text">Secrets are stored encrypted, sent only to the server, and never shown.</p>
        <${Failure} error=${error} />
        <div class="buttons">
          <button type="submit" class="main-button" disabled=${isSending}>
            ${isSending ? "Reading its tools…" : "Add the server"}
          </button>
          <button type="button" onClick=${onClose}>Back</button>
        </div>
      </form>
    <//>
  `;
}

/** @typedef {{form: Form, into: (field: keyof Form) => (event: any) => void}} FieldsProps */

/** @param {FieldsProps} props */
function OfAddress({ form, into }) {
  return html`
    <label>URL
      <input required type="url" maxlength="2000" placeholder="https://…/mcp" spellcheck=${false}
        value=${form.url} onInput=${into("url")} />
    </label>
    <label>Token, if it needs one
      <input type="password" autocomplete="off" maxlength="16000" value=${form.token} onInput=${into("token")} />
    </label>
    <label>Further headers, one a line, as <code>Name: value</code>
      <textarea rows="2" spellcheck=${false} value=${form.headers} onInput=${into("headers")} />
    </label>
  `;
}

/** @param {FieldsProps} props */
function OfCommand({ form, into }) {
  return html`
    <p class="quiet-text">Only a command that the operator lists in <code>HOLDFAST_MCP_COMMANDS</code> is started.</p>
    <label>Command
      <input required maxlength="4000" spellcheck=${false} value=${form.command} onInput=${into("command")} />
    </label>
    <label>Arguments, one a line
      <textarea rows="3" spellcheck=${false} value=${form.args} onInput=${into("args")} />
    </label>
    <label>Variables, one a line, as <code>NAME=value</code>
      <textarea rows="2" spellcheck=${false} value=${form.env} onInput=${into("env")} />
    </label>
  `;
}

/** The body of the request. Throws an error that names the wrong field. @param {Form} form */
function bodyOf(form) {
  /** @type {Record<string, unknown>} */
  const config = { mcp_server_type: form.type };
  if (form.type === "stdio") {
    config.command = form.command.trim();
    config.args = linesIn(form.args);
    if (form.env.trim() !== "") config.env = pairsIn(form.env, "=", "Variables");
  } else {
    config.server_url = form.url.trim();
    if (form.token.trim() !== "") config.auth_token = form.token.trim();
    if (form.headers.trim() !== "") config.custom_headers = pairsIn(form.headers, ":", "Further headers");
  }
  return { server_name: form.name.trim(), config };
}
