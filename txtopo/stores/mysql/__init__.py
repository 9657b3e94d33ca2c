"""Stores in MySQL and MariaDB."""
