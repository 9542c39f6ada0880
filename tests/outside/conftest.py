"""What runs beside other people's packages is not collected: they are not installed."""

collect_ignore = ["accelerate_rows.py", "deepspeed_rows.py", "llama.py"]
