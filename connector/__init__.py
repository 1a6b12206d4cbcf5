"""Spark's NSQ source and sink, on PySpark's Python DataSource V2 API."""
