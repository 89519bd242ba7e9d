"""What the dialects of browsers share: conversations that pages name, submissions, decisions, and tokens of pages."""
