"""Virtual GPUs that answer to ``cuda``.

torch.cuda's own Python stays. On a CPU build it lacks the functions of ``torch._C``
that it calls, and ``functions`` has them. ``streams`` has the classes that C++ would
bring, ``cards`` the properties of named GPUs, and ``patches`` the places where torch
has to be told.
"""
