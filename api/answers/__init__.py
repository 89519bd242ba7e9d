"""Types of the answers, for the OpenAPI document alone: programs are generated from it."""
