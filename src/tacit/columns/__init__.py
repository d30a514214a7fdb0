"""What is publicly known of a table's columns, and what do its cells mean? Without torch."""
