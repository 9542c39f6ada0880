"""Collectives: schedules of messages between ranks, and what they cost."""
