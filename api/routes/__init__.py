"""Routes parse a request, call a service and render the answer. Further decisions belong elsewhere."""
