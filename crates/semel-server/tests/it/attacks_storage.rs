//! Attacks on what is kept: stores that are filled, files that others can read, secrets that targets echo.

mod exhaustion;
mod file_rights;
