// The API through which a run was submitted.

/** By the names of dialects. Letta's own dialect has no entry. */
const DIALECTS = {
  mcp: "MCP",
  "openai.chat": "OpenAI's Chat Completions",
  "openai.responses": "OpenAI's Responses",
};

/** @param {any} run */
export const dialectOf = (run) => {
  const name = run.metadata?.dialect;
  return name ? (DIALECTS[/** @type {keyof typeof DIALECTS} */ (name)] ?? name) : "Letta's API";
};
