"""What each mutant needs compiled. The server that forks working processes imports it once: see `processes`."""

from onceonly_verify.programs import compile_unchanged

compile_unchanged()
