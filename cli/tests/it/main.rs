//! What the program promises to its users.
