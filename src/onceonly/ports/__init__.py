"""The protocols the algorithms talk to. Each fits on a screen; its docstrings are the contract that the suites test."""
