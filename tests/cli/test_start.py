"""How soon the command line is there."""

import subprocess
import sys


def test_a_worker_process_imports_no_commands() -> None:
    """Every child imports its parent's script; that must not cost it Typer, Rich and all the commands."""
    code = "import sys, onceonly.cli; print([name for name in ('typer', 'rich', 'onceonly.demo') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
