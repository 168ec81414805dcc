"""The command line: one short function per command; everything heavy is imported inside them."""
