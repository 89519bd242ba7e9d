// Small parts that every page shows: empty lists, failures, times, ids.

import { html, useEffect, useState } from "../html.js";
import { agentName } from "../lib/agent_names.js";
import { duration, moment, NOTHING, shortId, time } from "../lib/format.js";

/** @typedef {import("../html.js").ComponentChildren} Children */

/**
 * The note for an empty list; the children explain what to do next.
 * @param {{title: string, children?: Children}} props
 */
export function Empty({ title, children }) {
  return html`<section class="empty panel"><h2>${title}</h2>${children}</section>`;
}

/**
 * An error, and a way to try again.
 * @param {{error: Error | null | undefined, retry?: () => void}} props
 */
export function Failure({ error, retry }) {
  if (!error) return null;
  return html`
    <div class="failure" role="alert">
      <p>${error.message}</p>
      ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
    </div>
  `;
}

/**
 * A time of the API, in the reader's time zone.
 * @param {{at: string | null | undefined}} props
 */
export function Time({ at }) {
  const when = moment(at);
  if (when === null) return NOTHING;
  return html`<time dateTime=${when.toISOString()} title=${when.toISOString()}>${time(when)}</time>`;
}

/**
 * A duration, or the time since the beginning of something that goes on.
 * @param {{ms?: number | null, since?: string | null}} props
 */
export function Duration({ ms, since }) {
  const began = moment(since);
  const goesOn = (ms === null || ms === undefined) && began !== null;
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!goesOn) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [goesOn]);
  return html`<span class="figure">${duration(goesOn ? now - began.getTime() : ms)}</span>`;
}

/**
 * A shortened id, with a button that copies the whole id.
 * @param {{id: string | null | undefined, href?: string, whole?: boolean}} props
 */
export function Id({ id, href, whole = false }) {
  if (!id) return NOTHING;
  const text = whole ? id : shortId(id);
  return html`
    <span class="id" title=${id}>
      ${href ? html`<a href=${href}>${text}</a>` : html`<code>${text}</code>`}
      <${Copy} text=${id} what=${text} />
    </span>
  `;
}

/**
 * An agent by its name, or by its id until the name is known.
 * @param {{id: string | null | undefined}} props
 */
export function AgentName({ id }) {
  if (!id) return NOTHING;
  const name = agentName(id);
  const href = `#/agents/${id}`;
  if (name === "") return html`<${Id} id=${id} href=${href} />`;
  return html`<span class="id" title=${`${name}, ${id}`}>
    <a class="short-name" href=${href}>${name}</a> <${Copy} text=${id} what=${`the id of ${name}`} />
  </span>`;
}

/**
 * A button that copies a text.
 * @param {{text: string, what: string}} props
 */
export function Copy({ text, what }) {
  const [said, setSaid] = useState("");
  /** @param {Event} event */
  const copy = async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("The browser did not let the page copy");
    }
    setTimeout(() => setSaid(""), 1500);
  };
  return html`
    <button type="button" class="copy" aria-label=${`Copy ${what}`} onClick=${copy}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5">
        <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M10.5 3.5v-1h-8v8h1" />
      </svg>
    </button>
    <span class="for-readers" role="status">${said}</span>
    ${said !== "" && html`<span class="copied" aria-hidden="true">${said}</span>`}
  `;
}
