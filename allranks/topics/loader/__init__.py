"""The DataLoader: a queue between workers and the model."""
