"""What is here runs beside other people's packages, by ``make outside``."""

collect_ignore_glob = ["*.py"]
