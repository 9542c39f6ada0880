"""What was run: commands and their records, figures, when each file last ran."""
