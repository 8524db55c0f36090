"""The table of invoices."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    dependencies = (("shop", "0001_initial"),)
    operations = (
        migrations.CreateModel(
            "Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("order", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="shop.order")),
            ],
        ),
    )
