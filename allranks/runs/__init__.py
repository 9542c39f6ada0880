"""The sums, checked: real ranks do what they describe, and record what happened."""
