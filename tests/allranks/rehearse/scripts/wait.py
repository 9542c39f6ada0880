"""Put something on the GPU, say so, and wait for a Ctrl-C, deaf to a SIGTERM."""

import os
import signal
import time

import torch

signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = torch.ones(8, device="cuda")
print(f"pid {os.getpid()}", flush=True)
time.sleep(60)
