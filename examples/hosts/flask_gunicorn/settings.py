"""The settings of gunicorn."""

from examples.hosts.http_clients import socket_of
from examples.hosts.program import PREFIX

bind = f"unix:{socket_of(PREFIX)}"
workers = 2
graceful_timeout = 5
control_socket_disable = True
