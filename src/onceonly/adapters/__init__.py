"""One folder for each system. They are independent of each other: what they share lies in `sql` and `documents`."""
