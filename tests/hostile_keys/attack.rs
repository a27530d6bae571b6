//! The client: requests as raw bytes, since no library would send them, and connections that have many under way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use fastrand::Rng;
use http::StatusCode;

/// Invents hosts, none of them twice.
pub(crate) struct Attacker {
    rng: Rng,
    seed: u64,
    number: usize,
    without_host: usize,
}

/// A connection, and how many answers it owes.
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
    owed: usize,
}

// === impl Attacker ===

impl Attacker {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), seed, number: 0, without_host: 0 }
    }

    /// How many it sent whose host counts as none.
    pub(crate) fn without_host(&self) -> usize {
        self.without_host
    }

    pub(crate) fn requests(&mut self, n: usize) -> Vec<u8> {
        let mut requests = Vec::new();
        (0..n).for_each(|_| self.request(&mut requests));
        requests
    }

    fn request(&mut self, to: &mut Vec<u8>) {
        self.number += 1;
        let Self { rng, seed, number, .. } = self;
        let fresh = format!("{number}.{seed}.test");
        let kind = rng.u8(..16);
        self.without_host += usize::from(kind < 4);
        match kind {
            // Bytes that may stand in a header and in no host; two hosts; none; one that is too long.
            0 => {
                let odd = [b"\xff", b"\xc3", b" ", b"%", b"/", b"\"", b"\t", b"["][rng.usize(..8)];
                line(to, "/", &[fresh.as_bytes(), odd, b"x"].concat());
            }
            1 => {
                line(to, "/", fresh.as_bytes());
                to.extend(format!("host: {fresh}\r\n").bytes());
            }
            2 => to.extend(b"GET / HTTP/1.1\r\n"),
            3 => {
                let most = if rng.u8(..16) == 0 { 64 * 1024 } else { 512 };
                line(to, "/", format!("{fresh}{}", "x".repeat(rng.usize(254..most))).as_bytes());
            }
            // The longest there is.
            4 => line(to, "/", format!("{}{fresh}.:80", "x".repeat(253 - fresh.len())).as_bytes()),
            5 => {
                let (high, low) = (*number >> 16, *number & 0xffff);
                line(to, "/", format!("[{seed:x}:{high:x}:{low:x}::1]:8080").as_bytes());
            }
            // The URI's host comes first, and the header may be what it likes.
            6 => line(to, &format!("http://u:p@{fresh}:8080/"), b"\xff\xfe"),
            7..=9 => line(to, "/", format!("{number}.{seed}.Quick.TEST.").as_bytes()),
            _ => line(to, "/", fresh.to_uppercase().as_bytes()),
        }
        if self.rng.u8(..) == 0 {
            to.extend(b"x-junk: ");
            let junk = (0..self.rng.usize(..64 * 1024)).map(|n| 0x80 | n as u8);
            to.extend(junk);
            to.extend(b"\r\n");
        }
        to.extend(b"\r\n");
    }
}

fn line(to: &mut Vec<u8>, target: &str, host: &[u8]) {
    to.extend(format!("GET {target} HTTP/1.1\r\nhost: ").bytes());
    to.extend(host);
    to.extend(b"\r\n");
}

/// A request whose host is any bytes at all: of everything, of what a host may have, or a good one with a few changed.
pub(crate) fn any_bytes(number: usize, rng: &mut Rng) -> Vec<u8> {
    let len = if rng.u8(..8) == 0 { rng.usize(..2_000) } else { rng.usize(..40) };
    let mut host: Vec<u8> = match rng.u8(..3) {
        0 => (0..len).map(|_| rng.u8(..)).collect(),
        1 => (0..len).map(|_| b"aZ0.:-_[]@%*"[rng.usize(..12)]).collect(),
        _ => format!("{number}.test").into_bytes(),
    };
    for _ in 0..rng.usize(..3).min(host.len()) {
        let at = rng.usize(..host.len());
        host[at] = rng.u8(..);
    }
    let mut request = Vec::new();
    line(&mut request, "/", &host);
    request.extend(b"connection: close\r\n\r\n");
    request
}

// === impl Connection ===

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new(), owed: 0 }
    }

    pub(crate) fn send(&mut self, requests: &[u8]) {
        self.owed += requests.windows(5).filter(|five| five == b"GET /" || five == b"GET h").count();
        self.stream.write_all(requests).unwrap();
    }

    /// The status of the one request that is under way.
    pub(crate) fn status(&mut self) -> StatusCode {
        assert_eq!(self.owed, 1);
        self.next().unwrap()
    }

    /// The status of each request that is under way.
    pub(crate) fn statuses(&mut self) -> impl Iterator<Item = StatusCode> {
        std::iter::from_fn(|| (self.owed > 0).then(|| self.next().expect("an answer to each")))
    }

    /// The status of each answer until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<StatusCode> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// The next answer's status; none has a body.
    fn next(&mut self) -> Option<StatusCode> {
        let end = loop {
            if let Some(at) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut more = [0; 4_096];
            match self.stream.read(&mut more) {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.read.extend(&more[..len]),
            }
        };
        let head: Vec<u8> = self.read.drain(..end).collect();
        self.owed = self.owed.saturating_sub(1);
        Some(StatusCode::from_bytes(head.get(9..12)?).unwrap())
    }
}
