//! Attacks on what is kept: stores that are filled, files that others can read, secrets that targets echo.

mod echoed_secrets;
mod exhaustion;
mod file_rights;
mod unencrypted;
