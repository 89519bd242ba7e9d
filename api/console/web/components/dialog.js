// A window above the page. The browser's own <dialog> keeps the focus inside, and Esc closes it.

import { html, useEffect, useRef } from "../html.js";

/** @typedef {import("../html.js").ComponentChildren} Children */

/** @param {{title: string, onClose: () => void, children?: Children}} props */
export function Dialog({ title, onClose, children }) {
  const window = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const shown = window.current;
    shown?.showModal();
    return () => shown?.close();
  }, []);
  return html`
    <dialog class="dialog" ref=${window} aria-label=${title} onClose=${onClose}>
      <header class="dialog-head">
        <h2>${title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button>
      </header>
      ${children}
    </dialog>
  `;
}

/**
 * Asks for confirmation of an action that cannot be undone.
 * @param {{title: string, action: string, onConfirm: () => void, onClose: () => void, children?: Children}} props
 *   `action`: the word on the button of the action
 */
export function Confirm({ title, action, onConfirm, onClose, children }) {
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      ${children}
      <div class="buttons">
        <button type="button" onClick=${onClose}>Keep</button>
        <button type="button" class="danger" onClick=${onConfirm}>${action}</button>
      </div>
    <//>
  `;
}
