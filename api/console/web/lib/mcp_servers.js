// MCP servers in the API's form, and the texts and forms about them.

/**
 * @typedef {{id: string, server_name: string, mcp_server_type: "streamable_http" | "sse" | "stdio", server_url?: string,
 *   command?: string, args?: string[], refreshed_at: string | null, problem: string | null}} McpServer
 */
/**
 * @typedef {{id: string, name: string, description: string | null, default_requires_approval: boolean | null,
 *   idempotent: boolean, tags: string[], json_schema?: {parameters?: Record<string, any>} | null}} McpTool
 */
/** @typedef {{added: string[], updated: string[], deleted: string[], skipped: {name: string, reason: string}[]}} Changes */

/** @type {Record<McpServer["mcp_server_type"], string>} */
export const TYPES = {
  streamable_http: "Streamable HTTP",
  sse: "SSE, as servers of the first version speak it",
  stdio: "A command that the API and the workers start",
};

/** A server's address: its URL, or its command line. @param {McpServer} server */
export function placeOf(server) {
  if (server.mcp_server_type !== "stdio") return server.server_url ?? "";
  return [server.command, ...(server.args ?? [])].join(" ");
}

/** The address of a server's page. @param {McpServer} server */
export function pageOf(server) {
  return `#/mcp-servers/${server.id}`;
}

/**
 * The changes of a refresh, as a sentence.
 * @param {Changes} changes
 */
export function toldChanges(changes) {
  const parts = [
    ...["added", "updated", "deleted"].map((what) => {
      const names = changes[/** @type {"added"} */ (what)];
      return names.length === 0 ? "" : `${what}: ${names.join(", ")}`;
    }),
    ...changes.skipped.map((tool) => `left out: ${tool.name}, because ${tool.reason}`),
  ].filter(Boolean);
  return parts.length === 0 ? "The list was read. Nothing has changed." : `The list was read. ${parts.join("; ")}.`;
}

/**
 * The pairs in a text, one per line, such as `Name: value`. Throws an error that names an invalid line.
 * @param {string} text
 * @param {string} between the separator of a name and its value
 * @param {string} of the name of the lines, for the error
 * @returns {Record<string, string>}
 */
export function pairsIn(text, between, of) {
  return Object.fromEntries(
    linesIn(text).map((line) => {
      const at = line.indexOf(between);
      if (at < 1) throw new Error(`${of}: write a name, “${between}” and a value in each line, instead of “${line}”`);
      return [line.slice(0, at).trim(), line.slice(at + between.length).trim()];
    }),
  );
}

/** @param {string} text @returns {string[]} the lines that are not empty */
export function linesIn(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/**
 * Initial arguments: the required ones, with the schema's defaults, or empty.
 * @param {Record<string, any>} schema
 * @returns {Record<string, unknown>}
 */
export function firstArguments(schema) {
  const properties = schema.properties ?? {};
  /** @type {string[]} */
  const required = Array.isArray(schema.required) ? schema.required : [];
  return Object.fromEntries(required.filter((name) => name in properties).map((name) => [name, firstValue(properties[name])]));
}

/** @param {any} schema */
function firstValue(schema) {
  if (schema?.default !== undefined) return schema.default;
  if (Array.isArray(schema?.enum)) return schema.enum[0];
  switch (Array.isArray(schema?.type) ? schema.type[0] : schema?.type) {
    case "integer":
    case "number":
      return 0;
    case "boolean":
      return false;
    case "array":
      return [];
    case "object":
      return {};
    default:
      return "";
  }
}
