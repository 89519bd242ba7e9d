"""All SQL of the product. One store method is one transaction; nothing here knows Redis."""
