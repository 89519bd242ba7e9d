// Sends a message to a run while it works: its next step reads the message.

import { html, useRef, useState } from "../html.js";
import { request } from "../lib/api.js";
import { newOtid } from "../lib/otid.js";
import { Failure } from "./basics.js";

/** @param {{runId: string}} props */
export function InjectMessage({ runId }) {
  const [text, setText] = useState("");
  const [said, setSaid] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isSending, setIsSending] = useState(false);
  // A text keeps its otid until the server has confirmed it, because the answer to an earlier try may be lost.
  const named = useRef({ text: "", otid: "" });
  /** @param {Event} event */
  const inject = async (event) => {
    event.preventDefault();
    if (isSending || text.trim() === "") return;
    if (named.current.otid === "" || named.current.text !== text) named.current = { text, otid: newOtid() };
    setError(null);
    setSaid("");
    setIsSending(true);
    try {
      const body = { messages: [{ role: "user", content: text, otid: named.current.otid }] };
      await request("POST", `/v1/runs/${runId}/inject`, { body });
      named.current = { text: "", otid: "" };
      // Text that was typed meanwhile is the next message.
      setText((now) => (now === text ? "" : now));
      setSaid("Injected: the run's next step reads it.");
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    } finally {
      setIsSending(false);
    }
  };
  return html`
    <form class="panel stack" onSubmit=${inject}>
      <label>Tell the run something
        <textarea rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}></textarea>
      </label>
      <div><button type="submit" disabled=${isSending}>${isSending ? "Injecting…" : "Inject"}</button></div>
      <p class="note" role="status">${said}</p>
      <${Failure} error=${error} />
    </form>
  `;
}
