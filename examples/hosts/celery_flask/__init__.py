"""Flask and Celery on RabbitMQ or Redis: a view sends a task, tasks send tasks, and another service receives an event.

lines.py          what all programs have: the table, the places, and the settings of Celery
control.py        the application as the documentation of Flask and of Celery shows it
exactly_once.py   the same application with onceonly
books.py          the service that receives the event
queue_once.py     the control with the tasks of celery-once
outbox.py         the control with django-celery-outbox, on Django's connection
running.py        starts the processes of a program, kills them, and counts what came of it
"""
