"""Notebooks in a real JupyterLab: a package, so that fixtures can be of its scope."""
