// Otids for sent messages: two messages with one otid are one message.

/** A unique otid. `crypto.randomUUID` exists only on secure origins, `getRandomValues` everywhere. */
export function newOtid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
