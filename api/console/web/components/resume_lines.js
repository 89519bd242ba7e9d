// The lines with which a program resumes this stream.

import { html } from "../html.js";
import { key } from "../lib/session.js";
import { Copy } from "./basics.js";

/** @param {{runId: string, lastSeq: number}} props */
export function ResumeLines({ runId, lastSeq }) {
  const curl =
    `curl -N ${location.origin}/v1/runs/${runId}/stream -H 'Content-Type: application/json'` +
    `${key.value === "" ? "" : ' -H "Authorization: Bearer $HOLDFAST_API_KEY"'} -d '{"starting_after": ${lastSeq}}'`;
  const python = `for frame in client.runs.messages.stream("${runId}", starting_after=${lastSeq}): print(frame)`;
  return html`
    <details class="panel">
      <summary>Read on from here</summary>
      <h3>curl <${Copy} text=${curl} what="the curl line" /></h3>
      <pre tabindex="0" aria-label="The curl line">${curl}</pre>
      <h3>Python <${Copy} text=${python} what="the Python line" /></h3>
      <pre tabindex="0" aria-label="The Python line">${python}</pre>
    </details>
  `;
}
