"""The K1 cluster stack's tool: board profiles, images, virtual boards."""

__version__ = "0.1.0"
