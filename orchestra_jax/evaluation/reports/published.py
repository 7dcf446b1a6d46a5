"""What the paper published, for rows beside ours: arXiv 2511.21689."""

# arXiv 2511.21689, Table 1: accuracy on HLE and FRAMES in %; cents and minutes are means over both.
PUBLISHED = (
    ("Qwen3-8B, no tools", 3.2, 24.2, 0.2, 0.6),
    ("Qwen3-8B, basic tools", 4.7, 26.5, 1.3, 2.2),
    ("Qwen3-8B, tools and models", 30.6, 68.9, 27.6, 18.3),
    ("GPT-5, basic tools", 35.1, 74.0, 30.2, 19.8),
    ("GPT-5, tools and models", 21.2, 57.5, 17.8, 13.6),
    ("Claude Opus 4.1, tools and models", 34.6, 72.8, 52.5, 25.6),
    ("Orchestrator-8B", 37.1, 76.3, 9.2, 8.2),
)
PLACES = {"hle": 1, "frames": 2}  # of a benchmark's accuracy in a row above
