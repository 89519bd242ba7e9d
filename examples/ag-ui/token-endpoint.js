// What your own server does. It keeps the API key, knows who asks, and gives the page a token that opens one chat for a
// while. Here it is part of Vite's server; in Next.js it is a route handler, in Express a route.

export const HOLDFAST = process.env.HOLDFAST_URL ?? "http://127.0.0.1:8283"
const KEY = process.env.HOLDFAST_API_KEY ?? "none" // `make dev` asks for no key
const MODEL = process.env.HOLDFAST_MODEL ?? "builtin/scripted" // needs no network; or "openai/gpt-6-luna" and the like
const NAME = `ag-ui with ${MODEL}`

const TOOLS = [
  {
    source_code: `
def weather(city: str) -> str:
    """Look up the weather.

    Args:
        city: where
    """
    return f"Sun and 21 degrees in {city}."
`,
  },
  {
    default_requires_approval: true, // a person decides before it runs
    source_code: `
def send_money(to: str, amount: int) -> str:
    """Send money.

    Args:
        to: who gets it
        amount: how much, in euros
    """
    return f"Sent {amount} euros to {to}."
`,
  },
]

async function holdfast(method, path, body) {
  const answer = await fetch(HOLDFAST + path, {
    method,
    headers: { Authorization: `Bearer ${KEY}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  })
  if (!answer.ok) throw new Error(`Holdfast answers ${answer.status}: ${await answer.text()}`)
  return answer.json()
}

let agentId // found or made once; your database knows which agent is whose

async function findAgent() {
  const [found] = await holdfast("GET", `/v1/agents/?name=${encodeURIComponent(NAME)}`)
  if (found) return found.id
  const tools = await Promise.all(TOOLS.map(tool => holdfast("PUT", "/v1/tools/", tool)))
  const made = { name: NAME, model: MODEL, tool_ids: tools.map(tool => tool.id), include_base_tools: false }
  return (await holdfast("POST", "/v1/agents/", made)).id
}

async function lend(chatId) {
  // Your session says here who asks, and whether the chat is theirs.
  agentId ??= findAgent().catch(error => {
    agentId = undefined
    throw error
  })
  const agent = await agentId
  const token = await holdfast("POST", `/v1/agents/${agent}/page-token`, { thread_id: chatId, may: "chat", valid_for_s: 3600 })
  return { ...token, agent_id: agent, model: MODEL }
}

/** Answers `POST /token` with `{"chat_id": …}`. A middleware of Connect, Express and Vite. */
export async function tokenEndpoint(request, response) {
  if (request.method !== "POST") return response.writeHead(405).end()
  try {
    let body = ""
    for await (const piece of request) body += piece
    const lent = await lend(JSON.parse(body).chat_id)
    response.writeHead(200, { "Content-Type": "application/json", "Cache-Control": "no-store" }).end(JSON.stringify(lent))
  } catch (error) {
    console.error(error.message)
    response.writeHead(503).end(`Holdfast at ${HOLDFAST} does not answer. Is it running?`)
  }
}
