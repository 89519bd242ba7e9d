// The effects of a run: the started tool calls, their outcomes, and a person's finding about a lost call.

import { html, useState } from "../html.js";
import { actorName } from "../lib/actor.js";
import { request } from "../lib/api.js";
import { usePolled } from "../lib/polling.js";
import { Failure, Id, Time } from "./basics.js";
import { Dialog } from "./dialog.js";

/** The interval of requests while a call is open, because no stream shows when its tool starts. */
const EVERY_MS = 2000;

/** @type {Record<string, string>} */
const LOOKS = { done: "good", settled: "good", failed: "bad", unknown: "asks", started: "works", not_started: "ended" };

/** @type {Record<string, string>} */
const STATES = { not_started: "not started" };

/** @type {Record<string, string>} */
const OUTCOMES = { happened: "It happened", did_not_happen: "It did not happen" };

/**
 * @param {{runs: any[], hasOpenCall: boolean, turns: number}} props `runs`: a run and its continuations; `turns` as in
 *   `Shown`
 */
export function Effects({ runs, hasOpenCall, turns }) {
  const { data, error, reload } = usePolled(
    (signal) => Promise.all(runs.map((run) => effectsOf(run, signal))),
    hasOpenCall ? EVERY_MS : 0,
    [runs.map((run) => run.id).join()],
    `${turns} ${runs[runs.length - 1].status}`,
  );
  const effects = merged(data.value ?? []);
  if (error.value !== null && effects.length === 0) return html`<${Failure} error=${error.value} retry=${reload} />`;
  if (effects.length === 0) return null;
  return html`
    <section class="effects" aria-labelledby="effects-title">
      <h2 id="effects-title">Effects</h2>
      <ul class="children">
        ${effects.map((one) => html`<li key=${one.idempotency_key}><${Effect} effect=${one} onSettled=${reload} /></li>`)}
      </ul>
    </section>
  `;
}

/**
 * @param {any} run
 * @param {AbortSignal} signal
 * @returns {Promise<any[]>}
 */
async function effectsOf(run, signal) {
  const effects = await request("GET", `/v1/runs/${run.id}/effects`, { signal });
  return effects.map((/** @type {any} */ one) => ({ ...one, run_id: run.id }));
}

/**
 * Each call once: a run that waited for a person lists calls that its continuation made.
 * @param {any[][]} ofRuns
 * @returns {any[]}
 */
function merged(ofRuns) {
  const all = new Map(ofRuns.flat().map((one) => [one.idempotency_key, one]));
  const made = new Set([...all.values()].filter((one) => one.state !== "not_started").map((one) => one.call_id));
  return [...all.values()].filter((one) => one.state !== "not_started" || !made.has(one.call_id));
}

/** @param {{effect: any, onSettled: () => void}} props */
function Effect({ effect, onSettled }) {
  const [isAsked, setIsAsked] = useState(false);
  return html`
    <span class="call-name">${effect.name}</span>${" "}
    <span class=${`status status-${LOOKS[effect.state] ?? "ended"}`}>${STATES[effect.state] ?? effect.state}</span>${" "}
    ${effect.attempt > 1 && html`<span class="quiet-text">started ${effect.attempt} times</span>${" "}`}
    ${effect.started_at && html`<span class="quiet-text"><${Time} at=${effect.started_at} /></span>${" "}`}
    <${Id} id=${effect.idempotency_key} />
    ${effect.settled_by && html`<${Settled} effect=${effect} />`}
    ${effect.state === "unknown" &&
    html`<p class="note">It was started, and its result is lost. Look at the service that it acts on.
      ${" "}<button type="button" onClick=${() => setIsAsked(true)}>Settle…</button></p>`}
    ${isAsked &&
    html`<${SettleDialog} effect=${effect} onClose=${() => setIsAsked(false)} onSettled=${() => {
      setIsAsked(false);
      onSettled();
    }} />`}
  `;
}

/** @param {{effect: any}} props */
function Settled({ effect }) {
  const by = effect.settled_by === "probe" ? "its probe" : effect.settled_by_name;
  return html`<p class="note">${OUTCOMES[effect.outcome]}, says ${by}${effect.result !== null && `: ${effect.result}`}</p>`;
}

/** @param {{effect: any, onClose: () => void, onSettled: () => void}} props */
function SettleDialog({ effect, onClose, onSettled }) {
  const [outcome, setOutcome] = useState("happened");
  const [result, setResult] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isSending, setIsSending] = useState(false);
  /** @param {Event} event */
  const settle = async (event) => {
    event.preventDefault();
    setIsSending(true);
    setError(null);
    const said = outcome === "happened" && result ? { outcome, result } : { outcome };
    try {
      const path = `/v1/runs/${effect.run_id}/effects/${encodeURIComponent(effect.call_id)}`;
      await request("POST", path, { body: { ...said, settled_by: actorName() } });
      onSettled();
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
      setIsSending(false);
    }
  };
  return html`
    <${Dialog} title=${`The outcome of ${effect.name}`} onClose=${onClose}>
      <form class="stack" onSubmit=${settle}>
        <label>Outcome
          <select value=${outcome} onChange=${(/** @type {any} */ event) => setOutcome(event.currentTarget.value)}>
            ${Object.entries(OUTCOMES).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
          </select>
        </label>
        ${outcome === "happened" &&
        html`<label>Result, for the record
          <textarea rows="3" maxlength="100000" value=${result} onInput=${(/** @type {any} */ event) => setResult(event.currentTarget.value)}></textarea>
        </label>`}
        <p class="note">This stays with the run. The conversation does not change: the model was told that the outcome is unknown.</p>
        <${Failure} error=${error} />
        <div class="buttons">
          <button type="button" onClick=${onClose}>Leave it unknown</button>
          <button type="submit" disabled=${isSending}>${isSending ? "Settling…" : "Settle it"}</button>
        </div>
      </form>
    <//>
  `;
}
