// Asks for an API key.

import { html, useEffect, useRef } from "../html.js";
import { key, keyRefusal, signIn } from "../lib/session.js";

export function SignIn() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const given = field.current?.value.trim() ?? "";
    if (given !== "") signIn(given);
  };
  return html`
    <form class="sign-in panel" onSubmit=${submit}>
      <h1>This server asks for a key</h1>
      <p>
        Paste an API key of your project. The server's operator makes one with <code>holdfast keys create</code>. It
        stays in this tab and is sent to this server alone.
      </p>
      ${keyRefusal.value !== "" && html`<p class="failure" role="alert">${keyRefusal.value}</p>`}
      <label for="key">API key</label>
      <input id="key" type="password" autocomplete="off" spellcheck=${false} ref=${field} defaultValue=${key.peek()} />
      <button type="submit" class="main-button">Open</button>
    </form>
  `;
}
