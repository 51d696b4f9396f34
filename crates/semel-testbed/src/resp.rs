//! A minimal Redis client: blocking, one command at a time. Tests of Semel use the real one.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{Error, Result, error::Doing};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Status(String),
    /// An error, with its code as the first word.
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// A list of answers.
    Array(Vec<Reply>),
}

impl Reply {
    /// The reply as text: statuses, errors, numbers and bytes unchanged, lists joined by spaces.
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil => String::new(),
            Self::Array(items) => items.iter().map(Self::text).collect::<Vec<_>>().join(" "),
        }
    }
}

/// A connection to Redis.
#[derive(Debug)]
pub struct Conn {
    stream: BufReader<TcpStream>,
}

impl Conn {
    /// Connects. Every wait for a reply is limited to ten seconds.
    ///
    /// # Errors
    /// [`Error::Io`] if the server does not accept.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        Self::connect_within(addr, TIMEOUT)
    }

    /// Connects with a timeout, which also limits every wait for a reply.
    ///
    /// # Errors
    /// [`Error::Io`] if the server does not accept.
    pub fn connect_within(addr: SocketAddr, timeout: Duration) -> Result<Self> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&addr, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            stream.set_nodelay(true)?;
            io::Result::Ok(stream)
        };
        let stream = connect().doing(|| format!("connecting to {addr}"))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and reads the reply. An error of Redis is returned as [`Reply::Error`].
    ///
    /// # Errors
    /// [`Error::Io`] if the connection breaks or no reply arrives in time.
    pub fn ask(&mut self, args: &[&str]) -> Result<Reply> {
        let mut command = format!("*{}\r\n", args.len());
        for arg in args {
            command.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        let mut exchange = || {
            self.stream.get_mut().write_all(command.as_bytes())?;
            self.read()
        };
        exchange().doing(|| format!("asking Redis for {}", args.join(" ")))
    }

    /// Sends a command that must not fail.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and [`Error::Reply`] for an error reply.
    pub fn tell(&mut self, args: &[&str]) -> Result<Reply> {
        match self.ask(args)? {
            Reply::Error(answer) => Err(Error::Reply { asked: args.join(" "), answer }),
            reply => Ok(reply),
        }
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken(line))?;
        let number = || rest.parse::<i64>().map_err(|_| broken(line));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" | "*" if rest == "-1" => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()?).map_err(|_| broken(line))? + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            "*" => Reply::Array((0..number()?).map(|_| self.read()).collect::<io::Result<_>>()?),
            _ => return Err(broken(line)),
        })
    }
}

fn broken(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of Redis: {line:?}"))
}
