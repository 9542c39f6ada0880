"""Buckets: DDP's gradients travel together while backward still computes."""
