"""Tasks of Celery with onceonly and without it: tasks a second, and what a task costs on the wire."""
