"""Data set shelf: one file is one data set; its name is the name on the command line."""
