// A program written with the generated types of docs/openapi.json: `.ci/clients` compiles it.
import type { components, operations } from "./holdfast";

type Frame = components["schemas"]["Frame"];
type Run = operations["runs_retrieve"]["responses"]["200"]["content"]["application/json"];
type Streamed = operations["runs_stream"]["responses"]["200"]["content"]["text/event-stream"];
type Refusal = operations["agents_create"]["responses"]["422"]["content"]["application/json"];
type NewAgent = operations["agents_create"]["requestBody"]["content"]["application/json"];

export const agent: NewAgent = { name: "support", model: "builtin/echo" };

export function shown(frame: Frame): string {
  switch (frame.message_type) {
    case "assistant_message":
      return frame.content;
    case "tool_return_message":
      return frame.tool_returns.map((one) => `${one.tool_call_id}: ${one.status}`).join(", ");
    case "error_message":
      return `${frame.code}: ${frame.message} ${frame.hint}`;
    default:
      return frame.message_type;
  }
}

export const streamed = (frame: Streamed): Frame => frame;
export const endedAt = (run: Run): Date | null => (run.completed_at === null ? null : new Date(run.completed_at));
export const isBusy = (refusal: Refusal): boolean => refusal.code === "conversation_busy";

// @ts-expect-error: a name that no run has
export const mistyped = (run: Run) => run.compleated_at;
// @ts-expect-error: a code that no error has
export const unknown = (refusal: Refusal): boolean => refusal.code === "confersation_busy";
