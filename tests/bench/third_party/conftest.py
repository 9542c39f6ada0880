"""What stands in for data is no test, and changes how modules are imported."""

collect_ignore = ["stand_ins"]
