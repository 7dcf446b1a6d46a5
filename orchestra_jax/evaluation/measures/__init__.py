"""What is measured beside means: samples, calls, fronts of cost, caps of turns, and how right a judge is."""
