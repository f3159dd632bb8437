"""Step 1: is the server there, and what does it serve?"""
