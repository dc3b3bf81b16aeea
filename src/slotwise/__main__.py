"""``python -m slotwise``: the command line."""

from slotwise.cli.main import main

if __name__ == "__main__":
    main()
