"""Types of answers, only for the OpenAPI document, from which clients are generated."""
