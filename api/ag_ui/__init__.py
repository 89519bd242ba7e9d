"""AG-UI: the protocol between agents and the pages of CopilotKit and of others, version 1.0."""
