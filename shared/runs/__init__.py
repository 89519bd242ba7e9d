"""Operations on runs that both the API and the worker use: adopt a log, decide an approval, cancel an orphaned run."""
