// The frames of a stream in their order of arrival. Only the visible ones are drawn, so ten thousand cost no more.

import { html, useRef, useState } from "../html.js";
import { number } from "../lib/format.js";
import { JsonView } from "./json_view.js";

const ROW_PX = 24;
const SPARE = 10;
const LONG = 300;

/**
 * @param {{events: import("../lib/run_stream.js").Frame[], count: number}} props `events` is one list that grows; a new
 *   `count` shows that it has grown
 */
export function RawEvents({ events, count }) {
  const [isOpen, setIsOpen] = useState(false);
  return html`
    <details class="panel" onToggle=${(/** @type {any} */ event) => setIsOpen(event.currentTarget.open)}>
      <summary>Raw events <span class="quiet-text">${number(count)}</span></summary>
      ${isOpen && html`<${EventList} events=${events} count=${count} />`}
    </details>
  `;
}

/** @param {{events: import("../lib/run_stream.js").Frame[], count: number}} props */
function EventList({ events, count }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [chosen, setChosen] = useState(/** @type {number | null} */ (null));
  const height = box.current?.clientHeight ?? 352;
  const first = Math.max(0, Math.floor(top / ROW_PX) - SPARE);
  const last = Math.min(count, Math.ceil((top + height) / ROW_PX) + SPARE);
  return html`
    <div class="events" tabindex="0" role="group" aria-label="Raw events" ref=${box}
      onScroll=${() => setTop(box.current?.scrollTop ?? 0)}>
      <div class="events-space" style=${{ height: `${count * ROW_PX}px` }}>
        ${events.slice(first, last).map((frame, offset) => {
          const index = first + offset;
          return html`
            <button type="button" key=${index} class="event-row" style=${{ top: `${index * ROW_PX}px` }}
              onClick=${() => setChosen(index)}>
              <span class="number">${frame.seq}</span>
              <span>${frame.data?.message_type ?? "end"}</span>
              <span class="quiet-text">${brief(frame.data)}</span>
            </button>
          `;
        })}
      </div>
    </div>
    ${chosen !== null && html`<${JsonView} value=${events[chosen]?.data ?? "[DONE]"} label=${`Event ${events[chosen]?.seq}`} open=${true} />`}
  `;
}

/** @param {any} data */
function brief(data) {
  return data === null ? "" : JSON.stringify(data).slice(0, LONG);
}
