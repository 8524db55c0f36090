"""Handlers on Django's ORM, and the same as tasks of Celery: messages a second, and what a message costs on the wire."""
