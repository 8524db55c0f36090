"""A shop in Django under gunicorn: orders come by HTTP, and another service receives an event for each.

* `control.py` has the URLs and views as the documentation of Django shows them, with `settings.py`.
* `exactly_once.py` has the same with onceonly, with `settings_once.py`.
* With `settings_relay.py` the relay sends all messages, and web processes send none.
* `invoices` is an app with a task of Celery for each order: `python -m examples.hosts.django_shop --invoices`.
* `bookkeeping.py` is the other service, a plain consumer with a table.
* `world.py` has the clients, the other service and the tables, as the harness sees them.
* `tests.py` has the tests of the shop: `python -m examples.hosts.django_shop.manage test examples.hosts.django_shop`.
"""
