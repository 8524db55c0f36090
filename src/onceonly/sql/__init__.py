"""What SQL systems share: the database, its dialect, schemas, the queue; `sql.store` has the store."""
