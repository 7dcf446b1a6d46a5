"""Results of evaluations, from their files alone: reports, pages of rollouts, and how right a judge is."""
