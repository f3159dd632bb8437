"""The eight steps of one run, measured live or graded from its files."""
