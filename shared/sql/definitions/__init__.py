"""The nouns that clients define: agents, tools, memory blocks, conversations."""
