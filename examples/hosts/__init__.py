"""Applications of other frameworks, before and after onceonly, killed again and again: `python -m examples.hosts.NAME`.

control.py        the application as the framework's documentation shows it
exactly_once.py   the same application with onceonly
__main__.py       its `Host`, and the command

`harness.py` runs both and counts. A new host needs a folder with these files, and a `Wire` for its broker if there is none yet.
"""
