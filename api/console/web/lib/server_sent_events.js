// Server-sent events out of a response's body. `EventSource` cannot send a header, and a key never goes into a URL.

/** @typedef {{seq: number, event: string, data: any}} Frame a frame of a run's stream; data is null at its end */

/**
 * The frames of a response, one by one, as they arrive.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<Frame>}
 */
export async function* framesOf(body) {
  /** @type {ReadableWritablePair<string, any>} */
  const asText = new TextDecoderStream();
  const reader = body.pipeThrough(asText).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const frame = parsed(part);
        if (frame !== null) yield frame;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/**
 * One event; null for a comment, which is a sign of life and no frame.
 * @param {string} text
 * @returns {Frame | null}
 */
export function parsed(text) {
  let seq = 0;
  let event = "message";
  let data = null;
  for (const line of text.split("\n")) {
    if (line.startsWith("id:")) seq = Number(line.slice(3));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data = (data === null ? "" : `${data}\n`) + line.slice(5).trimStart();
  }
  if (data === null) return null;
  return data === "[DONE]" ? { seq, event: "done", data: null } : { seq, event, data: JSON.parse(data) };
}
