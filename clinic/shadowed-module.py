r"""torch is not a package: your own file has a module's name.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: No module named 'torch\.distributed'; 'torch' is not a package

You see: `'torch' is not a package`, or an `ImportError` from deep inside the standard
library, although both are installed and work from another folder.

Cause: the script's folder comes first on Python's path. A file named `torch.py`,
`random.py`, `types.py` or `queue.py` there is found before the real module, also by
torch's own imports.

Cure: rename the file, and delete the `__pycache__` that it left.

Next time: `print(torch.__file__)` shows which file was imported.

Links: https://github.com/pytorch/pytorch/issues/574 (a folder called torch beside the script)
"""

# %% broken: python torch.py
import torch.distributed

print("gloo:", torch.distributed.is_gloo_available())

# %% fixed: python train.py
import torch.distributed

print("gloo:", torch.distributed.is_gloo_available())

# %% signs
# '?torch(?:\.(?!_C)\w+)*'? is not a package
# partially initialized module '(?:random|types|queue|copy|enum|signal|select|torch)'
# ImportError: cannot import name '\w+' from '(?:random|types|queue|enum|signal)'
# module '(?:random|types|queue|copy|enum|signal|select|logging|inspect)' has no attribute
# maybe: partially initialized module '(?!torch|cv2|charset_|transformers|jax|tensorflow|flash_|deepspeed|apex|PIL)\w+' has no attribute .*circular import
# maybe: No module named '[\w.]+'; '(?!torch)\w+' is not a package
