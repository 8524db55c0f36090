"""What starts or reaches a server: servers, emulators, and proxies that stand before them."""
