// Two texts, line by line, with the removed and the added lines. Signs and words mark them, not only colour.

import { html } from "../html.js";
import { lineDiff } from "../lib/line_diff.js";

const SIGNS = { same: " ", removed: "-", added: "+" };
const SPOKEN = { same: "", removed: "removed: ", added: "added: " };

/** @param {{before: string, after: string, label?: string}} props */
export function Diff({ before, after, label = "Change" }) {
  const found = lineDiff(before, after);
  return html`<ol class="diff" aria-label=${label}>
    ${found.map(
      (line) => html`<li class=${`diff-${line.kind}`}>
        <span aria-hidden="true" class="diff-sign">${SIGNS[line.kind]}</span>
        <span class="for-readers">${SPOKEN[line.kind]}</span><code>${line.text}</code>
      </li>`,
    )}
  </ol>`;
}
