"""`python -m maniple`."""

from maniple.cli.app import main

if __name__ == "__main__":
    main()
