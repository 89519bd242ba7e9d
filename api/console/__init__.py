"""The console: a web page that the API serves. It uses only the API, like any other client."""
