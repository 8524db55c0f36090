"""The tests with other interpreters, and with the lowest and the newest versions of what the library needs."""
