"""Kernel backends: from a local program to something that runs."""
