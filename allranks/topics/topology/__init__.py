"""Topology: nodes, processes, ranks and devices."""
