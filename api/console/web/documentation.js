// Shows the OpenAPI document of this server with Swagger UI, whose script the page has loaded before this one.

/** @type {any} */ (globalThis).SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#documentation",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null, // no request to another server
});
