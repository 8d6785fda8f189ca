//! The transcripts in `tests/cmd` are what the program says, word for word. They double as its documentation.
