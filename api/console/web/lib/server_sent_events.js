// Server-sent events from a response's body. `EventSource` cannot send a header, and a key must never be in a URL.

/**
 * @typedef {{seq: number, cursor: string, event: string, data: any}} Frame data is null at the end of the stream. `cursor`:
 *   the place after which the stream resumes, "" without one; `seq`: the number in the run's log, with which a cursor ends
 */

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
 * One event; null for a comment, which is only a keep-alive.
 * @param {string} text
 * @returns {Frame | null}
 */
export function parsed(text) {
  let cursor = "";
  let event = "message";
  let data = null;
  for (const line of text.split("\n")) {
    if (line.startsWith("id:")) cursor = line.slice(3).trim();
    else if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data = (data === null ? "" : `${data}\n`) + line.slice(5).trimStart();
  }
  if (data === null) return null;
  const seq = Number(cursor.slice(cursor.lastIndexOf(".") + 1));
  if (data === "[DONE]") return { seq, cursor, event: "done", data: null };
  return { seq, cursor, event, data: JSON.parse(data) };
}
