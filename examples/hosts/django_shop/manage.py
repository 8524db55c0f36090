"""The commands of the shop: `python -m examples.hosts.django_shop.manage COMMAND`."""

import os
import sys

from django.core.management import execute_from_command_line

SETTINGS = "examples.hosts.django_shop.settings_once"

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", SETTINGS)
    execute_from_command_line(sys.argv)
