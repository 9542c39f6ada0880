"""Timelines: how long each rank worked and waited in a cell."""
