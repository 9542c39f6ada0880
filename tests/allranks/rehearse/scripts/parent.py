"""Start two processes that fail, and do not look at how they end."""

import multiprocessing

import torch


def fail(rank):
    """Use a GPU and fail."""
    torch.ones(1, device=f"cuda:{rank}")
    raise ValueError("a rank fails")


if __name__ == "__main__":
    for rank in range(2):
        multiprocessing.get_context("spawn").Process(target=fail, args=(rank,)).start()
