"""Run a script, unchanged, on a computer that seems to have several GPUs.

    python -m allranks.vgpu 2 --memory "64 MiB" scripts/ch6_model_parallel.py --steps 20

The script finds the devices through torch.accelerator, as it finds CUDA devices.
"""

import argparse
import os
import runpy
import sys

from allranks import vgpu


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, of which everything after the script is the script's."""
    parser = argparse.ArgumentParser("python -m allranks.vgpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("num_devices", type=int, help="how many virtual GPUs")
    parser.add_argument("--memory", default="1 GiB", help='of each: "64 MiB"')
    parser.add_argument("--smi", action="store_true", help="end with a memory table")
    parser.add_argument("--traffic", action="store_true", help="end with the copies")
    parser.add_argument("script", help="the script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's arguments")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Plug in, run the script as __main__, and print the tables that were asked for."""
    args = parse_args(argv)
    if not os.path.isfile(args.script):
        raise SystemExit(f"{args.script}: no such script")
    try:
        vgpu.plug_in(args.num_devices, args.memory)
    except (ValueError, RuntimeError) as error:
        raise SystemExit(str(error)) from None
    sys.argv = [args.script, *args.args]
    sys.path[0] = os.path.dirname(os.path.abspath(args.script))
    try:
        runpy.run_path(args.script, run_name="__main__")
    finally:
        for wanted, view in ((args.traffic, vgpu.traffic), (args.smi, vgpu.smi)):
            if wanted:
                print(view())


if __name__ == "__main__":
    main()
