"""What a rule is: its model, its language, its actions and the process that runs them."""
