"""Buildroot: our external tree, rendered for a board, and the build of an image with it."""
