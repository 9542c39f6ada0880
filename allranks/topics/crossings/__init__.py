"""Crossings: from which size on one all_reduce is faster than another."""
