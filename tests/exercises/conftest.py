"""The answers are no tests and no modules: tests/answers.py reads them as text."""

collect_ignore_glob = ["ex*.py"]
