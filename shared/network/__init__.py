"""Connections that leave the process: where they may lead, and whom they trust."""
