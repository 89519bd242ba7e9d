// Names for what is sent: the same name twice is one message.

/** A name that nobody else gives. `crypto.randomUUID` is there on secure origins alone, `getRandomValues` everywhere. */
export function newOtid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
