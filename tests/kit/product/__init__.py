"""The product as tests run it: in their own process or as processes, behind proxies, and the clients that use it."""

from tests.kit.product.in_process import HEADERS, Product, api_client, as_text, asgi_client, running_product

__all__ = ["HEADERS", "Product", "api_client", "as_text", "asgi_client", "running_product"]
