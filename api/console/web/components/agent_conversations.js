// The conversations of an agent, to open one or to begin a new one.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { NOTHING } from "../lib/format.js";
import { usePaged } from "../lib/paged.js";
import { go, href } from "../lib/routing.js";
import { Empty, Failure, Id, Time } from "./basics.js";
import { Pager } from "./pager.js";

/** @typedef {{id: string, summary: string | null, created_at: string, last_message_at: string | null}} Conversation */

const PAGE = 25;
const EVERY_MS = 5000;

/** @param {Conversation} conversation */
const idOf = (conversation) => conversation.id;

/** @param {{agentId: string}} props */
export function AgentConversations({ agentId }) {
  const list = usePaged("/v1/conversations", { agent_id: agentId }, { size: PAGE, when: EVERY_MS, idOf });
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const begin = async () => {
    try {
      const made = await request("POST", "/v1/conversations", { query: { agent_id: agentId }, body: {} });
      go(`/agents/${agentId}`, { show: "talk", conversation: made.id });
    } catch (thrown) {
      setError(/** @type {Error} */ (thrown));
    }
  };
  return html`<section aria-label="Conversations">
    <div class="toolbar">
      <a href=${href(`/agents/${agentId}`, { show: "talk" })}>The agent's own history</a>
      <button type="button" class="main-button" onClick=${begin}>New conversation</button>
    </div>
    <${Failure} error=${error ?? list.error} retry=${list.reload} />
    ${list.rows?.length === 0 &&
    html`<${Empty} title="The agent has no conversations">
      <p>Clients talk to it in its own history by default. A conversation is a further history beside that one.</p>
    <//>`}
    ${list.rows !== undefined && list.rows.length > 0 && html`<${Table} rows=${list.rows} agentId=${agentId} />`}
    <${Pager} ...${list} of="conversations" />
  </section>`;
}

/** @param {{rows: Conversation[], agentId: string}} props */
function Table({ rows, agentId }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Conversations">
    <table>
      <thead>
        <tr>
          <th scope="col">Conversation</th><th scope="col">About</th><th scope="col">Last message</th>
          <th scope="col">Begun</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr key=${row.id}>
            <th scope="row">
              <${Id} id=${row.id} href=${href(`/agents/${agentId}`, { show: "talk", conversation: row.id })} />
            </th>
            <td class="long">${row.summary || NOTHING}</td>
            <td><${Time} at=${row.last_message_at} /></td>
            <td><${Time} at=${row.created_at} /></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
