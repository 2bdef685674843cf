"""Patches for sources that are not public: rendered against the tree they are for, never against a guess of it."""
