"""The command line: one short file a command, each of which parses, calls and prints."""
