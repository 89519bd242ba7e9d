import { defineConfig } from "vite"
import { HOLDFAST, tokenEndpoint } from "./token-endpoint.js"

const withToken = {
  name: "token-endpoint",
  configureServer: server => void server.middlewares.use("/token", tokenEndpoint),
  configurePreviewServer: server => void server.middlewares.use("/token", tokenEndpoint),
}

// The page asks its own origin, and Vite passes these paths on. Without a proxy, give the page Holdfast's own address and
// set HOLDFAST_CORS_ORIGINS to the page's origin.
const toHoldfast = {
  target: HOLDFAST,
  // Vite keeps an answer open for ever whose sender has gone away. The page must learn of it, so that it comes back.
  configure: proxy =>
    proxy.on("proxyRes", (upstream, _request, answer) => {
      upstream.on("close", () => upstream.complete || answer.destroy())
    }),
}
const proxy = { "/ag-ui": toHoldfast, "/v1/conversations": toHoldfast }

export default defineConfig({ plugins: [withToken], server: { proxy }, preview: { proxy } })
