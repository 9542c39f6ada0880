"""What is rehearsed is no test: the scripts are started by the command."""

import pytest

from allranks.rehearse.__main__ import main

collect_ignore = ["scripts"]


@pytest.fixture
def rehearse(capfd, monkeypatch):
    """Return a function that runs the command in this process, which has torch already.

    It returns the exit code, and what all processes printed and complained of.
    """

    def run(*words, **variables):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = main(["--timeout=90", *words])
        return code, *capfd.readouterr()

    return run
