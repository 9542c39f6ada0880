"""The picture that opens a chapter: its idea in one look, before any code.

Each module has the name of its page, a sentence ``ALT`` that says what the picture
shows, and ``draw``. A picture is drawn twice: ``WIDE`` for a column, its halves side by
side, and ``NARROW`` for a phone, where they stand one below the other. Letters keep
their size in both.
"""

from importlib import import_module

from allranks.openings.sheet import NARROW, WIDE

NAMES = (
    "app_rehearse",
    "app_vgpu",
    "ch1_environment",
    "ch2_data_parallel",
    "ch3_save_load",
    "ch4_ranks",
    "ch5_ddp",
    "ch6_model_parallel",
    "ch7_collectives",
    "ch8_ddp_by_hand",
    "ch9_data",
    "ch10_precision",
)


def opening(name: str, narrow: bool = False) -> str:
    """Return the picture that opens a page, as SVG.

    Raises:
        LookupError: if no picture has this name.
    """
    if name not in NAMES:
        raise LookupError(f"no opening {name}: there are {', '.join(NAMES)}")
    module = import_module(f"{__name__}.{name}")
    return module.draw(NARROW if narrow else WIDE).svg(module.ALT)
