"""The page of `headgate web`: what runs, why it is slow, and what to do about it."""
