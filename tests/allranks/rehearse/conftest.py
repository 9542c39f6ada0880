"""What is rehearsed is no test: the scripts are started by the command."""

collect_ignore = ["scripts"]
