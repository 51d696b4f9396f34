//! Redis Streams as a source.

mod source;
