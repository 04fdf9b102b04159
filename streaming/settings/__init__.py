"""Settings of the applications of Spark, a module each; `spark` has those that several share."""
