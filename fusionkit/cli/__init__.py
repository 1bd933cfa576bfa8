"""The command line: one short file per command, which parses, calls and prints."""
