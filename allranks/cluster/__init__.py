"""A cluster in the laptop: ``python -m allranks.cluster 2 -- torchrun …``.

Each node has Linux namespaces of its own: an address, a host name, processes, shared
memory and a network link. The files, the processors and the clock are the laptop's.
"""
