"""Explorables in a browser: a package, so that they can share one."""
