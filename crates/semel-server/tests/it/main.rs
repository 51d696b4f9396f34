//! The binary, from outside: started as a user starts it, read by its ready line.

mod access;
mod claims;
mod commands;
mod demo;
mod drain;
mod gateway;
mod guide;
mod kit;
mod real_clients;
mod reload;
mod serve;
