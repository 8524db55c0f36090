"""What the SQL systems share."""
