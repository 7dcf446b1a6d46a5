"""New worlds and preferences, written by models and sifted by machines (section 3.3): docs/synthesis.md."""
