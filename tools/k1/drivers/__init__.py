"""Drivers: what the nouns use to reach one program, socket or file each."""
