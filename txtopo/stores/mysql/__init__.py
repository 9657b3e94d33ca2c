"""MySQL and MariaDB as the database of a store."""
