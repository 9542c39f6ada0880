"""Dress rehearsal: run a CUDA and NCCL script unchanged, where there is no GPU.

    python -m allranks.rehearse --gpus 4 torchrun --nproc-per-node 4 train.py

``command`` reads the reader's own command, ``launch`` starts it, and ``child`` is what
begins in each process: virtual GPUs, NCCL's rules, and a ``recorder``. In the end
``findings`` judges what the recorders wrote, and ``report`` prints it.
"""
