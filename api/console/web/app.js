// The frame around the pages: their routes, the header above them, and the panel that asks for a key.

import { html, render, useEffect, useRef } from "./html.js";
import { SignIn } from "./components/sign_in.js";
import { key, needsKey, signOut } from "./lib/session.js";
import { path, query } from "./lib/routing.js";
import { theme } from "./lib/theme.js";
import { AgentPage } from "./pages/agent.js";
import { AgentsPage } from "./pages/agents.js";
import { ApprovalsPage } from "./pages/approvals.js";
import { McpServerPage } from "./pages/mcp_server.js";
import { McpServersPage } from "./pages/mcp_servers.js";
import { OperationsPage } from "./pages/operations.js";
import { RunPage } from "./pages/run.js";
import { RunsPage } from "./pages/runs.js";

/** @typedef {{params: Record<string, string>, query: Record<string, string>}} PageProps */

const ROUTES = [
  { at: /^\/runs$/, page: RunsPage, title: "Runs" },
  { at: /^\/runs\/(?<id>[^/]+)$/, page: RunPage, title: "Run" },
  { at: /^\/approvals$/, page: ApprovalsPage, title: "Approvals" },
  { at: /^\/agents$/, page: AgentsPage, title: "Agents" },
  { at: /^\/agents\/(?<id>[^/]+)$/, page: AgentPage, title: "Agent" },
  { at: /^\/mcp-servers$/, page: McpServersPage, title: "MCP servers" },
  { at: /^\/mcp-servers\/(?<id>[^/]+)$/, page: McpServerPage, title: "MCP server" },
  { at: /^\/operations$/, page: OperationsPage, title: "Operations" },
];
const PLACES = [
  ["/runs", "Runs"],
  ["/approvals", "Approvals"],
  ["/agents", "Agents"],
  ["/mcp-servers", "MCP servers"],
  ["/operations", "Operations"],
];

function App() {
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const shown = useRef(path.value);
  const route = ROUTES.find((one) => one.at.test(path.value));
  useEffect(() => {
    document.title = `${route?.title ?? "Nothing here"} · Holdfast`;
    if (shown.current !== path.value) main.current?.focus();
    shown.current = path.value;
  }, [path.value]);
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => skip(event, main.current)}>Skip to content</a>
    <${Header} />
    <main id="main" tabindex="-1" ref=${main}>
      ${needsKey.value ? html`<${SignIn} />` : html`<${Page} route=${route} />`}
    </main>
  `;
}

/** @param {{route: typeof ROUTES[number] | undefined}} props */
function Page({ route }) {
  if (route === undefined) {
    return html`<h1>There is no such page</h1><p>Go to <a href="#/runs">the runs</a>.</p>`;
  }
  const params = { ...route.at.exec(path.value)?.groups };
  for (const name of Object.keys(params)) params[name] = decodeURIComponent(params[name]);
  return html`<${route.page} key=${path.value} params=${params} query=${query.value} />`;
}

function Header() {
  return html`
    <header class="top">
      <a class="name" href="#/runs">Holdfast</a>
      <nav aria-label="Pages">
        <ul>
          ${PLACES.map(([to, title]) => {
            const isHere = path.value === to || path.value.startsWith(`${to}/`);
            return html`<li><a href=${`#${to}`} aria-current=${isHere ? "page" : undefined}>${title}</a></li>`;
          })}
        </ul>
      </nav>
      <div class="top-end">
        <label class="theme"
          ><span class="for-readers">Colours</span>
          <select
            value=${theme.value}
            onChange=${(/** @type {any} */ event) => (theme.value = event.currentTarget.value)}
          >
            <option value="system">System</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        ${key.value !== "" && html`<button type="button" class="quiet" onClick=${signOut}>Forget key</button>`}
      </div>
    </header>
  `;
}

/**
 * Moves the focus without touching the part of the URL that names the page.
 * @param {Event} event
 * @param {HTMLElement | null} main
 */
function skip(event, main) {
  event.preventDefault();
  main?.focus();
}

const place = document.getElementById("app");
if (place !== null) {
  place.textContent = "";
  render(html`<${App} />`, place);
}
