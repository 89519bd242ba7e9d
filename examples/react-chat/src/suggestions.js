// What to try. A model of a provider gets the title; the built-in one, which needs no key and no network, gets a script
// that it plays.

const COUNTED = Array.from({ length: 60 }, (_, number) => number + 1).join(" ")

const SCRIPTS = {
  "Count to 60": [{ reasoning: "One number after the other.", text: COUNTED, delay_ms: 250 }],
  "How is the weather in Oslo?": [
    { reasoning: "I have a tool for that.", calls: [{ name: "weather", arguments: { city: "Oslo" } }] },
    { text: "Take your sunglasses: it is sunny and 21 degrees in Oslo.", delay_ms: 40 },
  ],
  "Send Ada 20 euros": [
    { text: "One moment.", calls: [{ name: "send_money", arguments: { to: "Ada", amount: 20 } }] },
    { text: "That is settled.", delay_ms: 40 },
  ],
}

const isScripted = model => model === "builtin/scripted"

export const hint = model =>
  isScripted(model) ? "The built-in model plays these. HOLDFAST_MODEL names one that understands you." : `Ask ${model}, for example:`

export function suggestions(model) {
  const script = turns => `\n\`\`\`script\n${JSON.stringify({ turns })}\n\`\`\``
  return Object.entries(SCRIPTS).map(([title, turns]) => ({ title, text: isScripted(model) ? title + script(turns) : title }))
}
