"""Packages that only run on a GPU: what to do when a script ends because of one.

Nothing is put in their place, because many scripts ask whether such a package is there
and do without it. But an error that one of them causes gets a sentence that says how.
"""

import functools
import importlib.util
import inspect
import sys
import traceback
from types import ModuleType
from typing import Any

PACKAGES = {
    "apex",
    "bitsandbytes",
    "causal_conv1d",
    "cupy",
    "deep_ep",
    "flash_attn",
    "flash_attn_interface",
    "mamba_ssm",
    "pycuda",
    "tensorrt",
    "torch_tensorrt",
    "transformer_engine",
    "triton",
    "xformers",
}
COMPILER = "torch.utils.cpp_extension"
COMPILES = ("cuda", "nvcc")  # words by which its error tells that it wanted a GPU's


class Refusing:
    """Lets torch's compiler of extensions refuse CUDA, once a script imports it.

    Otherwise it would run the machine's nvcc for minutes, in order to fail, and leave a
    lock if it is ended meanwhile. It comes first in ``sys.meta_path``, once.
    """

    def find_spec(self, name: str, *args: Any) -> Any:
        """Return where the compiler is, with what to do when it has been imported."""
        if name != COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        own = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            own(module)
            refuse_cuda(module)

        spec.loader.exec_module = exec_module
        return spec


def refuse_cuda(module: ModuleType) -> None:
    """Let ``load`` and ``load_inline`` raise for a source in CUDA, before all else."""
    compile_own = module._jit_compile

    @functools.wraps(compile_own)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(compile_own).bind(*args, **kwargs).arguments
        sources = given["sources"]
        sources = [sources] if isinstance(sources, str) else sources
        cuda = [path for path in sources if module._is_cuda_file(str(path))]
        if cuda or given.get("with_cuda"):
            what = str(cuda[0]) if cuda else "with_cuda=True"
            raise NotImplementedError(f"{what} is for CUDA, and nvcc is not started")
        return compile_own(*args, **kwargs)

    module._jit_compile = compiled


def advice(error: BaseException) -> str:
    """Say in one sentence what to do about an error that such a package has caused.

    Args:
        error: that ends the reader's script.

    Returns:
        The sentence, or "" for any other error.

    >>> advice(ModuleNotFoundError("No module named 'apex'", name="apex.parallel"))[:32]
    'import apex.parallel is made for'
    """
    name = getattr(error, "name", None) or ""
    if isinstance(error, ImportError) and name.partition(".")[0] in PACKAGES:
        return _sentence(f"import {name}", name.partition(".")[0])
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        package, call = module.partition(".")[0], f"{module}.{frame.f_code.co_name}"
        if package in PACKAGES:
            return _sentence(call, package)
        if module == COMPILER and any(word in str(error).lower() for word in COMPILES):
            return (
                f"{call} compiles for a real GPU, so it cannot be rehearsed: let a "
                "module of your own call it, and give a stand-in for that module, "
                "--stub MODULE=FILE"
            )
    return ""


def _sentence(call: str, package: str) -> str:
    if package in sys.modules and call.startswith("import "):  # a part has no stand-in
        package = call.removeprefix("import ")
    return (
        f"{call} is made for GPUs, so it is not rehearsed: give a file that has "
        f"stand-ins for what you use of it, --stub {package}=FILE"
    )
