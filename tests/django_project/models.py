"""Rows that views and tests write."""

from django.db import models


class Order(models.Model):
    """An order."""

    name = models.CharField(max_length=80)

    class Meta:
        """In the database of its alias."""

        app_label = "django_project"

    def __str__(self) -> str:
        return str(self.name)


class Line(models.Model):
    """A line of an order, whose order is checked at the commit, where a database has deferred constraints."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    class Meta:
        """In the database of its alias."""

        app_label = "django_project"

    def __str__(self) -> str:
        return str(self.order_id)


class RequestLine(models.Model):
    """The row that the applications of other frameworks write."""

    number = models.AutoField(primary_key=True)
    item = models.CharField(max_length=80)

    class Meta:
        """It is created without Django."""

        app_label = "django_project"
        managed = False
        db_table = "request_lines"

    def __str__(self) -> str:
        return str(self.item)


class TaskLine(models.Model):
    """The row that tasks of Celery write."""

    number = models.AutoField(primary_key=True)
    task = models.CharField(max_length=255)
    item = models.CharField(max_length=255)

    class Meta:
        """It is created without Django."""

        app_label = "django_project"
        managed = False
        db_table = "lines"

    def __str__(self) -> str:
        return f"{self.task} {self.item}"
