"""The commands: one file per subcommand, no logic beyond reading options and printing results."""
