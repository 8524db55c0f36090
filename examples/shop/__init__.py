"""A small shop: order on a web page, and see orders being billed and shipped, each of them once."""
