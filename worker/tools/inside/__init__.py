"""What runs on the tool's side: programs that are loaded by path or text, with the standard library and each other."""
