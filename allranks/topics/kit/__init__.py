"""The shell of all explorables: state, knobs, and three ways to show a figure."""
