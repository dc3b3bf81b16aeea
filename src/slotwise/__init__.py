"""Slotwise: a resource manager and job service for PySpark."""

__version__ = "0.1.0"
