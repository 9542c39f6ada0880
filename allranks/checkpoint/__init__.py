"""Look into a checkpoint, or write its plain form: ``python -m allranks.checkpoint``.

``reading`` loads a file or says why it does not, ``keys`` finds the state dict in it
and takes off what wrappers put before its names, ``writing`` gives a file its name once
it is complete, and ``refusals`` has the words. ``inspect``, ``convert`` and ``demo``
are the subcommands, and ``command`` is the command line. Importing this package imports
none of them, because torch takes seconds.
"""
