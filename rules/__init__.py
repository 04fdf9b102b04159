"""Rules: their model, their language, their actions and the process that runs these."""
