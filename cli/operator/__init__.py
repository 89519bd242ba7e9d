"""Commands that read a server's settings and open its database and Redis. They need no key and no running API."""
