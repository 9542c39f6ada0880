"""Packages that only run on a GPU: what to do when a script ends because of one.

Nothing is put in their place, because many scripts ask whether such a package is there
and do without it. But an error that one of them causes gets a sentence that says how.
"""

import sys
import traceback

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
