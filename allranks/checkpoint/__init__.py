"""Look into a checkpoint, or write its plain form: ``python -m allranks.checkpoint``.

``reading`` loads a file or says why it cannot, and ``keys`` finds the state dict in it
and removes the prefixes that wrappers add to its keys. ``writing`` gives a file its
name only once it is complete, and ``refusals`` words what is refused. ``inspect``,
``convert`` and ``demo`` are the subcommands, and ``command`` is the command line.
Importing this package imports none of them, because torch takes seconds to load.
"""
