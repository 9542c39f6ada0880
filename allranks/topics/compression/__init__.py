"""Compression: what ranks gain that send less than their gradients."""
