// JSON as text, folded if it is long, and never as markup.

import { html, useMemo } from "../html.js";

const LONG = 400;

/**
 * @param {{value: unknown, label?: string, open?: boolean}} props a string that contains JSON is shown as that JSON
 */
export function JsonView({ value, label = "JSON", open }) {
  const text = useMemo(() => asText(value), [value]);
  const isShort = text.length <= LONG;
  if (isShort && open !== false) return html`<pre class="json" tabindex="0" aria-label=${label}>${text}</pre>`;
  return html`
    <details class="folded" open=${open}>
      <summary>${label} <span class="quiet-text">${text.length.toLocaleString("en")} characters</span></summary>
      <pre class="json" tabindex="0" aria-label=${label}>${text}</pre>
    </details>
  `;
}

/** @param {unknown} value */
function asText(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
