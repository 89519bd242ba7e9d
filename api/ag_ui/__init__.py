"""AG-UI: the protocol between agents and web pages, such as CopilotKit's, version 1.0."""
