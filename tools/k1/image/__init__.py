"""Images: firmware, kernel, root and card of one board."""
