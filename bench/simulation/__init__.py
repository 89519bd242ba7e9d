"""A fleet under load, worked out from what one process costs."""
