"""The doctor: evidence from a machine, checks over it, causes and fixes."""
