"""What a chain of two endpoints with tokens leaves behind: nothing but its entities, however many messages went through."""
