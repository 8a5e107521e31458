"""The commands of `holdfast`, one file each; `cli.program` imports the one that is called."""
