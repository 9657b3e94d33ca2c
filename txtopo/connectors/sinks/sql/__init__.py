"""The sink for tables of a SQL database."""
