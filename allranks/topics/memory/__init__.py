"""Memory: what a training step holds, by kind, over its time."""
