"""The console as people see it, in a real browser, against the whole product."""
