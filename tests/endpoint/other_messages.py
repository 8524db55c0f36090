"""A message class with the name of another one."""

from dataclasses import dataclass


@dataclass
class Placed:
    """Its fields have other names than those of the other class."""

    title: str
    price: float
