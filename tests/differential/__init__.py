"""Programs of handlers, run through the library and with plain SQLAlchemy: a handler must not be able to tell."""
