"""`make demo-shop`: blind clients order in the shop while its processes are killed; every order must be there once."""
