"""What only a process can show: Ctrl-C, closed pipes, quick help, and the two ways to start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.command import start

KVIST = [sys.executable, "-m", "kvist"]


def read_until(process: subprocess.Popen[bytes], num_bytes: int) -> bytes:
    """Read that many bytes of stdout, which shows that the answer streams."""
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), num_bytes)


def test_ctrl_c_keeps_the_text_and_exits_130() -> None:
    process = start("generate", "--raw", "-p", "Hello", "--ignore-eos", step_s="0.05", answer="abcdefghijklmnop")
    seen = read_until(process, 1)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 5
    assert process.returncode == 130
    assert b"abcdefghijklmnop".startswith((seen + out).strip())
    assert b"interrupted" in err
    assert b"Traceback" not in err


def test_ctrl_c_in_a_long_prefill_exits_130_within_a_moment(tmp_path: Path) -> None:
    options, marker = ("--raw", "-p", "x" * 4000, "--json"), tmp_path / "began"
    process = start("generate", *options, step_s="0.1", step_tokens="16", marker=str(marker))  # 25 s in all
    while not marker.exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 5
    assert process.returncode == 130
    found = json.loads(out)
    assert (found["finish_reason"], found["generated_tokens"], found["ttft_s"]) == ("cancelled", 0, None)
    assert 0 < found["forward_tokens"] < 4000
    assert b"Traceback" not in err


def test_ctrl_c_while_compiling_exits_130_at_once() -> None:
    program = (
        "import hashlib, os, signal, threading\n"
        "from kvist.cli.interrupt import EndsProcess\n"
        "with EndsProcess():\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    threading.Thread(target=print, args=('began',), kwargs={'flush': True}).start()\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # like LLVM: deaf to Python's signals, without the GIL"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"began\n", b"")


def test_a_closed_pipe_is_silent() -> None:
    with start("generate", "--raw", "-p", "Hello", "--ignore-eos", "-n", "3000", step_s="0.01") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process, 1)
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 (a device)
        done = subprocess.run([*KVIST, "models"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"No space left" in done.stderr


def test_python_m_kvist_is_kvist() -> None:
    from kvist import __version__

    done = subprocess.run([*KVIST, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"kvist {__version__}\n"


def test_help_is_quick_and_loads_no_engine() -> None:
    program = (
        "import sys; sys.argv = ['kvist', 'generate', '--help']\n"
        "from kvist.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print('loaded:', [name for name in ('numpy', 'numba', 'tokenizers', 'rich', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")
    assert "Example: kvist generate" in done.stdout


def test_text_that_the_terminal_cannot_show_is_replaced() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    program = "from kvist.cli.output import Output; Output(False).line('å')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout.strip() == b"?"


@pytest.mark.parametrize("command", ["generate", "chat", "info", "models", "doctor", "cache clear"])
def test_every_command_has_help_with_an_example(command: str, kvist) -> None:
    done = kvist(*command.split(), "--help")
    assert done.code == 0
    assert "Example: kvist" in done.out
    assert "--json" in done.out
