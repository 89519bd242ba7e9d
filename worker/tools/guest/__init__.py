"""Programs that run on the tool's side. They are loaded by path or text, and use only the standard library."""
