"""Sharding: what ZeRO and FSDP hold on each rank, and what they send for it."""
