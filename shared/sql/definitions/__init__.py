"""What clients define: agents, tools, memory blocks, conversations."""
