"""The command line: arguments become frozen configuration, reports become tables or JSON."""
