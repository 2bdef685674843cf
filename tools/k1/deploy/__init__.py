"""Deploying programs, options, keys and a model to the nodes of a fleet, as steps that do only what is still to do."""
