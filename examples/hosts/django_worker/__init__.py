"""A worker of a Django project: orders come by RabbitMQ. Each is a row of the ORM, and another service receives an event.

* `control.py` is a consumer with pika and Django's ORM, as both document it.
* `exactly_once.py` is a handler of onceonly, which `manage.py onceonly run` runs.
* `world.py` has the queues and tables, as the harness sees them.
"""
