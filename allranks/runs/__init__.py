"""The sums, checked: real ranks do what they describe, and write down what happened."""
