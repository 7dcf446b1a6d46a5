"""Worker processes in the sandbox that run the tools of worlds which are not ours."""
