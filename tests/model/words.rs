//! The words of the model.

/// A millisecond in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// Who asked.
pub(crate) type Id = u64;

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// Waiting by reason, and in flight.
    pub(crate) times: [u64; 4],
    /// The longest that one spent so.
    pub(crate) longest: [u64; 4],
    pub(crate) refused: u64,
    pub(crate) timed_out: u64,
    pub(crate) gone: u64,
    pub(crate) finished: u64,
}

/// A gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Concurrency,
    Pace,
    Total,
}

/// What a poll comes to.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Started,
    Wait,
    Refused(Refusal),
}

/// An error.
#[derive(Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) reason: Option<Reason>,
    pub(crate) waited: u64,
    pub(crate) in_flight: usize,
    pub(crate) oldest: Option<u64>,
    pub(crate) earliest: Option<u64>,
}

/// An error's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    QueueFull,
    WaitTimeout,
    Closed,
    TooManySlots,
}

// === impl Refusal ===

impl Refusal {
    /// Of one who asked for a slot that was not there and was not made.
    pub(crate) fn outside(kind: Kind) -> Self {
        Self { kind, reason: None, waited: 0, in_flight: 0, oldest: None, earliest: None }
    }
}

// === impl Sums ===

impl Sums {
    pub(crate) fn add(&mut self, other: &Self) {
        for at in 0..4 {
            self.times[at] += other.times[at];
            self.longest[at] = self.longest[at].max(other.longest[at]);
        }
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.gone += other.gone;
        self.finished += other.finished;
    }
}
