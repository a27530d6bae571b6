//! What both sides do with one request: it follows from the request's number, which is its path.

use std::time::Duration;

use fastrand::Rng;

/// What the server does.
#[derive(Debug)]
pub(crate) struct Answer {
    /// How long the head takes.
    pub(crate) head: Duration,
    pub(crate) framing: Framing,
    pub(crate) pieces: Vec<usize>,
    /// How long it rests before each piece.
    pub(crate) rest: Duration,
    /// And before which step: 0 is the head, 1 the first piece.
    pub(crate) fault: Option<(Fault, usize)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Framing {
    NoContent,
    Length,
    Chunked,
    Trailers,
    /// The body ends with the connection.
    Close,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Reset,
    /// Nothing comes for a while, then the connection ends.
    Stall,
    Garbage,
    /// The end of the connection where more was to come.
    Close,
}

/// When the client has enough.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// At the end, or at the error.
    Read,
    /// After so much time, wherever it is then.
    Leave(Duration),
    /// Before it has asked.
    Unpolled,
    /// After so many frames.
    Frames(usize),
    /// At the end, but it keeps the body for a while.
    Keep(Duration),
}

fn micros(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.u64(..most))
}

// === impl Answer ===

impl Answer {
    pub(crate) fn of(number: u64) -> Self {
        let rng = &mut Rng::with_seed(number);
        let head = if rng.u8(..4) == 0 { micros(rng, 10_000) } else { Duration::ZERO };
        let pieces: Vec<_> = match rng.u8(..64) {
            // A big one.
            0 => (0..rng.usize(8..32)).map(|_| rng.usize(16_384..65_536)).collect(),
            _ => (0..rng.usize(..6)).map(|_| rng.usize(1..4_000)).collect(),
        };
        let rest = if rng.u8(..6) == 0 { micros(rng, 8_000) } else { Duration::ZERO };
        let framing = match rng.u8(..12) {
            0 => Framing::NoContent,
            1..=5 => Framing::Length,
            6..=8 => Framing::Chunked,
            9 | 10 => Framing::Trailers,
            _ => Framing::Close,
        };
        let fault = match rng.u8(..40) {
            0 => Some(Fault::Reset),
            1 => Some(Fault::Stall),
            2 => Some(Fault::Garbage),
            3 | 4 => Some(Fault::Close),
            _ => None,
        };
        let fault = fault.map(|fault| (fault, rng.usize(..=pieces.len())));
        Self { head, framing, pieces, rest, fault }
    }
}

// === impl End ===

impl End {
    pub(crate) fn of(number: u64) -> Self {
        let rng = &mut Rng::with_seed(!number);
        match rng.u8(..50) {
            0..=4 => Self::Leave(micros(rng, 3_000)),
            5..=7 => Self::Leave(micros(rng, 200_000)),
            8 => Self::Unpolled,
            9..=13 => Self::Frames(rng.usize(..3)),
            14 | 15 => Self::Keep(micros(rng, 5_000)),
            _ => Self::Read,
        }
    }
}
