"""A checkpoint that is whole or not there: written, found again, or refused.

Chapter 3 explains what belongs into one.
"""

import job

import argparse
import os
import pickle
import zipfile
from contextlib import suppress

import torch
import torch.distributed as dist


def add_flags(parser: argparse.ArgumentParser, path: str) -> None:
    """Add --checkpoint, whose default is a path, and --overwrite."""
    parser.add_argument("--checkpoint", default=path, help="to write")
    how = {"action": "store_true", "help": "replace it"}
    parser.add_argument("--overwrite", **how)


def probe(path: str) -> None:
    """Refuse, before training, a path that save() could not write."""
    mine = f"{path}.{os.getpid()}"
    try:
        for name in path, f"{path}.new":
            if not path or os.path.exists(name) != os.path.isfile(name):
                raise OSError(0, "not the name of a file")
        os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
        os.remove(mine)
    except OSError as error:
        why = f"--checkpoint {path or repr(path)}: {error.strerror}"
        job.refuse(f"{why}: name a file that can be written")


def keep(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse a path that exists, unless --overwrite is given."""
    probe(args.checkpoint)
    if os.path.exists(args.checkpoint) and not args.overwrite:
        why = f"{args.checkpoint} exists"
        job.refuse(f"{why}: --overwrite it, or name another")
    return args


def read_folder(parser: argparse.ArgumentParser, argv, default: str):
    """Add --folder and --overwrite; refuse a folder that must not be made."""
    parser.add_argument("--folder", default=default, help="to write")
    parser.add_argument("--overwrite", action="store_true", help="write there")
    args = parser.parse_args(argv)
    above = os.path.dirname(os.path.abspath(args.folder))
    if os.path.exists(args.folder) and not args.overwrite:
        job.refuse(f"{args.folder} exists: --overwrite it, or name another")
    if not args.folder or not os.access(above, os.W_OK):
        job.refuse(f"--folder {args.folder!r}: name one that can be made")
    return args


def save(path: str, state: dict) -> None:
    """Write a new file, then rename it: no crash can break the old one."""
    new = f"{path}.new"
    job.unfinished.add(new)  # Ctrl-C removes it
    try:
        with open(new, "wb") as file:  # buffered: keeps writing until all is on its way
            torch.save(state, file)
            file.flush()
            os.fsync(file)
        os.replace(new, path)
    except BaseException as error:  # a full disk: leave nothing half
        with suppress(OSError):
            os.remove(new)
        for cause in error, error.__context__:
            if isinstance(cause, OSError):
                why = f"{path} is not saved: {cause.strerror}"
                job.refuse(f"{why}: make room or name another")
        raise
    finally:
        job.unfinished.discard(new)


def resume(args, run: dict, net: torch.nn.Module, optimizer) -> dict:
    """Return {"epoch": 0, ...}, or what a checkpoint says about a training.

    With --resume, or after torchrun has restarted the job, net and optimizer
    are filled from the file, if this run's settings are those of the file.
    """
    path, job_id = args.checkpoint, os.environ.get("TORCHELASTIC_RUN_ID")
    state = {"run": run, "epoch": 0, "job": job_id}
    exists = os.path.exists(path)
    again = exists and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") > "0"
    if not (args.resume or again):
        if exists and not args.overwrite:
            why = f"{path} exists"
            job.refuse(f"{why}: go on with --resume, or --overwrite it")
        return state
    try:
        found = torch.load(path, "cpu", weights_only=True)
        names = found["run"].keys(), found.keys() - {"model", "optim"}
        if names != (run.keys(), state.keys()):
            raise KeyError
        if again and not args.resume and found["job"] != job_id:
            raise ValueError("another job wrote it")
        old = {k: was for k, was in found["run"].items() if was != run[k]}
        for name, was in old.items():
            if name not in ("ranks", "batch_size", "epochs"):
                raise ValueError(f"it has {name} = {was}, not {run[name]}")
        done, num = found["epoch"], args.epochs
        if type(done) is not int or not 0 < done < num:
            raise ValueError(f"epoch {done} of --epochs {num}")
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optim"])
        of = optimizer.state  # an empty state has no momentum
        pairs = [(p, of[p]["momentum_buffer"]) for p in net.parameters()]
        fits = [p.shape == m.shape for p, m in pairs]
        if not all(fits) or optimizer.param_groups[0]["lr"] != args.lr:
            raise KeyError
        if not all(t.isfinite().all() for pair in pairs for t in pair):
            raise ValueError("it holds numbers that are not finite")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", error)
    except pickle.UnpicklingError:
        more = zipfile.is_zipfile(path)  # torch.load refused to run code
        why = "it holds more than weights" if more else "no checkpoint"
    except (EOFError, RuntimeError) as error:
        why = "of another model" if "state_dict" in str(error) else "damaged"
    except Exception:
        why = "not what this script writes"
    else:
        if dist.get_rank() == 0:
            plan = f"{done} of {num} epochs are done, so epoch={done} is next"
            changes = old.keys() - {"epochs"}
            now = [f"{k}: {run[k]} (was {old[k]})" for k in sorted(changes)]
            job.say("; ".join([plan, *now]))
        return found | {"run": run, "job": job_id}
    why = f"--checkpoint {path} cannot be used: {why}"
    job.refuse(f"{why}: change flags or file")
