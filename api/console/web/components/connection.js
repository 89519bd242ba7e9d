// The state of a run's stream, and the number from which it is shown.

import { html, useRef } from "../html.js";
import { number } from "../lib/format.js";
import { Failure } from "./basics.js";

/** @type {Record<import("../lib/api.js").StreamState, [string, string]>} */
const WORDS = {
  connecting: ["works", "Connecting"],
  live: ["good", "Live"],
  waiting: ["bad", "Connection lost, trying again"],
  ended: ["ended", "The stream is over"],
};

/** @param {{shown: import("../lib/run_stream.js").Shown, from: number, onFrom: (from: number) => void}} props */
export function Connection({ shown, from, onFrom }) {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [kind, words] = WORDS[shown.state];
  /** @param {Event} event */
  const replay = (event) => {
    event.preventDefault();
    onFrom(Number(field.current?.value ?? 0));
  };
  return html`
    <div class="connection">
      <span class=${`status status-${kind}`} role="status" data-state=${shown.state}>${words}</span>
      <span class="quiet-text">last number ${number(shown.transcript.lastSeq)}
        ${shown.interruptions > 0 && html`, taken up again after ${shown.interruptions} lost ${shown.interruptions === 1 ? "connection" : "connections"}`}</span>
      <form class="buttons-in-line" onSubmit=${replay}>
        <label>From number <input type="number" min="0" step="1" size="8" ref=${field} defaultValue=${String(from)} /></label>
        <button type="submit">Replay</button>
      </form>
    </div>
    <${Failure} error=${shown.error} />
  `;
}
