"""What both the API and the worker do with runs: adopt a log, decide an approval, cancel an orphaned run."""
