"""Invoices of the shop: a task of Celery for each order, which a view sends with `delay_on_commit`, and which writes a row.

* `control.py` has the application as the documentation of Celery shows it for Django, with `settings_invoices_control.py`.
* `once.py` has the same with onceonly, with `settings_invoices.py`.
* `apps.py` has the task sent for each new order, whatever view has stored it.
* `world.py` counts invoices instead of orders: an order that is there twice has two.
"""
