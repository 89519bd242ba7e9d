// The tokens of a run.

import { html } from "../html.js";
import { request } from "../lib/api.js";
import { number } from "../lib/format.js";
import { usePolled } from "../lib/polling.js";

/**
 * @param {{usage: Record<string, any> | null, runId: string, turns: number}} props `usage`: the stream's figures; `turns` as
 *   in `Shown`: figures are new after each step
 */
export function Usage({ usage, runId, turns }) {
  const asked = usePolled((signal) => request("GET", `/v1/runs/${runId}/usage`, { signal }), 0, [runId], turns);
  const shown = usage ?? asked.data.value;
  if (!shown) return null;
  const cached = shown.cached_input_tokens ?? shown.prompt_tokens_details?.cached_tokens;
  const reasoning = shown.reasoning_tokens ?? shown.completion_tokens_details?.reasoning_tokens;
  return html`
    <section class="panel" aria-labelledby="usage-title">
      <h2 id="usage-title">Tokens</h2>
      <dl class="facts">
        <div><dt>In</dt><dd>${number(shown.prompt_tokens)}</dd></div>
        <div><dt>of these cached</dt><dd>${number(cached)}</dd></div>
        <div><dt>Out</dt><dd>${number(shown.completion_tokens)}</dd></div>
        <div><dt>of these reasoning</dt><dd>${number(reasoning)}</dd></div>
        <div><dt>Total</dt><dd>${number(shown.total_tokens)}${shown.estimated ? " (in part estimated)" : ""}</dd></div>
      </dl>
    </section>
  `;
}
