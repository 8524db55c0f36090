"""The model checker, `onceonly-verify`."""
