"""Make a virtual environment with pip in it, on machines that lack one part or another of the means.

    python3 tools/make_venv.py DIRECTORY

Debian ships Python without ``ensurepip``; then virtualenv is used if it is there, and else the system's pip installs
a pip into an empty environment. Written for any Python 3, so that one that is too old is told so.
"""

import importlib.util
import subprocess
import sys

TOO_OLD = "kvist needs Python 3.10 or newer, {python} is {version}; name another: make PYTHON=python3.12 ..."
NO_MEANS = (
    "no virtual environment could be made with {python}: install the package python3-venv (Debian, Ubuntu: "
    "apt install python3-venv, or python{version}-venv for this very interpreter), python3-pip, or virtualenv"
)


def run(*command):
    # type: (*str) -> bool
    """Show a command and run it; return whether it succeeded."""
    print("+ " + " ".join(command), flush=True)
    return subprocess.call(command) == 0


def has_module(name):
    # type: (str) -> bool
    return importlib.util.find_spec(name) is not None


def make(directory):
    # type: (str) -> bool
    """Make ``directory`` an environment by the first way that this machine has."""
    python = sys.executable
    if has_module("venv") and has_module("ensurepip"):
        return run(python, "-m", "venv", directory)
    if has_module("virtualenv"):
        return run(python, "-m", "virtualenv", directory)
    if has_module("venv") and has_module("pip"):
        return run(python, "-m", "venv", "--without-pip", directory) and run(
            python, "-m", "pip", "--python", directory + "/bin/python", "install", "--quiet", "pip"
        )
    return False


def refuse(message):
    # type: (str) -> int
    version = ".".join(map(str, sys.version_info[:2]))
    print(message.format(python=sys.executable, version=version), file=sys.stderr)
    return 1


def main():
    # type: () -> int
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.version_info < (3, 10):
        return refuse(TOO_OLD)
    return 0 if make(sys.argv[1]) else refuse(NO_MEANS)


if __name__ == "__main__":
    sys.exit(main())
