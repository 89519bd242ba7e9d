// An editor for the arguments of a call: it shows at once what does not fit the tool, and it shows the change.

import { html, useEffect, useRef, useState } from "../html.js";
import { parametersOf } from "../lib/agent_tools.js";
import { readableArguments } from "../lib/approvals.js";
import { flawsOf, isSame } from "../lib/schema.js";
import { Diff } from "./diff.js";

/** @typedef {import("../lib/approvals.js").Approval} Approval */
/** @typedef {import("../lib/schema.js").Flaw} Flaw */
/** @typedef {Record<string, any> | null | undefined} Parameters `undefined` while they are fetched */

/**
 * @param {{approval: Approval, busy: boolean, onApprove: (changed: Record<string, any>) => void,
 *   onLeave: () => void}} props
 */
export function ArgumentsEditor({ approval, busy, onApprove, onLeave }) {
  const before = readableArguments(approval);
  const [text, setText] = useState(before);
  const parameters = useParameters(approval);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  const { value, flaws } = readArguments(text, parameters ?? {});
  const after = value === null ? text : JSON.stringify(value, null, 2);
  const changed = !isSame(value, approval.arguments_object);
  const name = `arguments-${approval.id}`;
  return html`<form class="decision-form" onSubmit=${submitted(() => value && flaws.length === 0 && onApprove(value))}>
    <label for=${name}>Arguments (JSON)</label>
    <textarea
      id=${name} ref=${field} class="code" rows=${Math.min(20, before.split("\n").length + 2)} spellcheck=${false}
      aria-invalid=${flaws.length > 0} aria-describedby=${`${name}-flaws`}
      value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}
    />
    <div id=${`${name}-flaws`} role="status">
      <${Flaws} flaws=${flaws} parameters=${parameters} />
    </div>
    ${after !== before && html`<${Diff} before=${before} after=${after} label="The change" />`}
    <div class="buttons">
      <button type="submit" class="main-button" disabled=${busy || flaws.length > 0 || !changed}>
        Approve with these arguments
      </button>
      <button type="button" onClick=${onLeave}>Back</button>
    </div>
  </form>`;
}

/** @param {{flaws: Flaw[], parameters: Parameters}} props */
export function Flaws({ flaws, parameters }) {
  if (flaws.length > 0) {
    return html`<ul class="flaws">
      ${flaws.map((flaw) => html`<li><strong>${flaw.field || "arguments"}</strong>: ${flaw.text}</li>`)}
    </ul>`;
  }
  if (parameters === undefined) return html`<p class="quiet-text">The tool's parameters are being fetched.</p>`;
  if (parameters === null) {
    return html`<p class="quiet-text">The agent has no such tool now: the server alone checks the arguments.</p>`;
  }
  return html`<p class="quiet-text">The arguments fit the tool's parameters.</p>`;
}

/**
 * The arguments in a text, or the text's flaws.
 * @param {string} text
 * @param {Record<string, any>} parameters
 * @returns {{value: Record<string, any> | null, flaws: Flaw[]}}
 */
export function readArguments(text, parameters) {
  try {
    const value = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      return { value: null, flaws: [{ field: "", text: "must be a JSON object, as {\"name\": \"value\"}" }] };
    }
    return { value, flaws: flawsOf(value, parameters) };
  } catch (error) {
    return { value: null, flaws: [{ field: "", text: `is not valid JSON: ${/** @type {Error} */ (error).message}` }] };
  }
}

/** @param {Approval} approval @returns {Parameters} */
function useParameters(approval) {
  const [parameters, setParameters] = useState(/** @type {Parameters} */ (undefined));
  useEffect(() => {
    let isWanted = true;
    parametersOf(approval.agent_id, approval.tool_name).then(
      (found) => isWanted && setParameters(found),
      // The server checks the arguments in any case.
      () => isWanted && setParameters(null),
    );
    return () => {
      isWanted = false;
    };
  }, [approval.agent_id, approval.tool_name]);
  return parameters;
}

/** A form's handler that stays on the page. @param {() => unknown} act */
export function submitted(act) {
  return (/** @type {Event} */ event) => {
    event.preventDefault();
    act();
  };
}
