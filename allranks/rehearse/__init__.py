"""Dress rehearsal: run a CUDA and NCCL script unchanged, where there is no GPU.

    python -m allranks.rehearse --gpus 4 torchrun --nproc-per-node 4 train.py

``launch`` reads the reader's own command and starts it, and ``child`` is what begins
in each process: virtual GPUs, NCCL's rules, and a ``recorder``, which follows
``memory``, ``traffic``, ``samples`` and ``replicas`` and writes one of the ``records``.
In the end ``findings`` judges them by the ``laws``, and ``report`` prints all of it.
"""
