import { hint, suggestions } from "./suggestions.js"
import "./style.css"
import { openThread } from "./thread.js"

// The thread's name is in the address: a reload and a second tab open the same thread. Any text does.
if (!location.hash) location.replace(`#thread-${crypto.randomUUID()}`)
addEventListener("hashchange", () => location.reload())

const [status, list, alert, form] = ["[role=status]", "section div", "[role=alert]", "form"].map(one => document.querySelector(one))
const [text, button] = form.elements
let isDue = false
const thread = openThread(location.hash.slice(1), () => {
  if (!isDue) requestAnimationFrame(render)
  isDue = true
})

function render() {
  isDue = false
  const isWaiting = thread.interrupts.length > 0
  status.textContent = !thread.isConnected ? "Connecting" : thread.isBusy ? "Working" : isWaiting ? "Waits for you" : "Ready"
  alert.textContent = thread.failure
  alert.hidden = !thread.failure
  button.textContent = thread.isBusy || isWaiting ? "Stop" : "Send"
  button.disabled = !thread.isConnected
  const results = new Map(thread.messages.filter(({ role }) => role === "tool").map(one => [one.toolCallId, one]))
  list.replaceChildren(...thread.messages.flatMap(message => shown(message, results)))
  if (thread.isConnected && !thread.isBusy && thread.messages.length === 0) list.append(offered())
}

function shown(message, results) {
  switch (message.role) {
    case "user":
      return [element("article", { className: "user" }, paragraph(message.content.split("```script")[0].trim()))]
    case "reasoning": {
      const isLast = thread.isBusy && message === thread.messages.at(-1)
      return [element("details", { className: "reasoning", open: isLast }, element("summary", {}, "Reasoning"), message.content)]
    }
    case "assistant": {
      const calls = (message.toolCalls ?? []).map(call => toolCall(call, results.get(call.id)))
      return [element("article", { className: "assistant" }, ...(message.content ? [paragraph(message.content)] : []), ...calls)]
    }
    default:
      return []
  }
}

function toolCall(call, result) {
  const interrupt = thread.interrupts.find(({ toolCallId }) => toolCallId === call.id)
  const decided = interrupt && thread.decisions.get(interrupt.id)
  const isOpen = interrupt && decided === undefined
  const ended = result?.metadata?.holdfast?.status === "error" ? "failed" : "done" // AG-UI has no word for it
  const state = result ? ended : isOpen ? "waits for your decision" : interrupt ? (decided ? "approved" : "denied") : "running"
  const { name, arguments: input } = call.function
  const head = element("div", { className: "call" }, element("code", {}, name), element("code", {}, input), element("span", {}, state))
  const card = element("div", { className: "tool" }, head)
  card.dataset.state = isOpen ? "approval-requested" : state
  if (isOpen) {
    const choice = (label, approved) => element("button", { onclick: () => thread.decide(interrupt.id, approved) }, label)
    card.append(element("div", { className: "buttons" }, choice("Approve", true), choice("Deny", false)))
  }
  if (result) card.append(element("pre", {}, asText(result.content)))
  return card
}

function offered() {
  const buttons = suggestions(thread.model).map(({ title, text }) => element("button", { onclick: () => thread.send(text) }, title))
  return element("div", { className: "suggestions" }, element("p", { className: "note" }, hint(thread.model)), ...buttons)
}

form.onsubmit = event => {
  event.preventDefault()
  if (thread.isBusy || thread.interrupts.length > 0) return thread.stop()
  if (!thread.isConnected || !text.value.trim()) return
  thread.send(text.value)
  text.value = ""
}
text.onkeydown = event => {
  if (event.key !== "Enter" || event.shiftKey) return
  event.preventDefault()
  if (button.textContent === "Send") form.requestSubmit()
}

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties)
  made.append(...children)
  return made
}

const paragraph = content => element("p", { className: "text" }, content)
const asText = content => (typeof content === "string" ? content : content.map(part => part.text ?? `[${part.type}]`).join("\n"))
