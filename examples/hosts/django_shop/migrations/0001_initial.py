"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    operations = (
        migrations.CreateModel(
            "Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order_id", models.CharField(max_length=80)),
            ],
        ),
    )
