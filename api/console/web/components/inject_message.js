// Says something to a run while it works: its next step reads it.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { Failure } from "./basics.js";

/** @param {{runId: string}} props */
export function InjectMessage({ runId }) {
  const [text, setText] = useState("");
  const [said, setSaid] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  /** @param {Event} event */
  const inject = async (event) => {
    event.preventDefault();
    if (text.trim() === "") return;
    setError(null);
    setSaid("");
    try {
      const body = { messages: [{ role: "user", content: text, otid: crypto.randomUUID?.() }] };
      await request("POST", `/v1/runs/${runId}/inject`, { body });
      setText("");
      setSaid("Injected: the run's next step reads it.");
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    }
  };
  return html`
    <form class="panel stack" onSubmit=${inject}>
      <label>Tell the run something
        <textarea rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}></textarea>
      </label>
      <div><button type="submit">Inject</button></div>
      <p class="note" role="status">${said}</p>
      <${Failure} error=${error} />
    </form>
  `;
}
