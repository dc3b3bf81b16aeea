"""The programs that Slotwise is measured beside. Nothing of them is shipped or imported by the project."""
