//! The words: how a request ends, under which limit and hold, and what it counts as.

use std::time::Duration;

use strum::{EnumIter, IntoEnumIterator};
use tokio::time::Instant;
use tower_slot::{Hold, SlotConfig, SlotLayer, SlotPermit, Slots};

use crate::support::{self, counts};

/// How the request ends, and whether that happens to its future or to its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Ending {
    // The future is dropped.
    Unpolled,
    InQueue,
    AtPace,
    AtTotal,
    NotReady,
    Connecting,
    Uploading,
    /// In the task that uploads; on HTTP/2 hyper does not tell the request.
    UploadPanicked,
    Called,
    // The future resolves.
    TimedOut,
    TimedOutAtPace,
    TimedOutAtTotal,
    Empty,
    /// Answered although the upload has not ended.
    Early,
    Error,
    NeverReady,
    Refused,
    UploadError,
    /// The server ends it in the middle of the upload.
    UploadCut,
    Garbage,
    Lost,
    /// A layer between has no patience.
    GivenUp,
    PanicInReady,
    PanicInCall,
    PanicInConnect,
    PanicInUpload,
    PanicInFuture,
    // The body is dropped.
    Untouched,
    AfterFrame,
    WhilePending,
    // The body ends, and is kept.
    Read2xx,
    Read5xx,
    LastFrame,
    Trailers,
    BodyError,
    LostInBody,
    PanicInBody,
}

/// What is limited beside the concurrency, which is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Limit {
    Nothing,
    Total,
    Pace,
    Wait,
}

/// What a request counts as in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    NeverAsked,
    Gone,
    TimedOut,
    Finished,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) ending: Ending,
    pub(crate) limit: Limit,
    pub(crate) hold: Hold,
    /// Whether the request says what is held, or the slot.
    pub(crate) per_request: bool,
}

pub(crate) const DELAY: Duration = Duration::from_secs(10);
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// All endings under all limits; only where there is a wait timeout can it come.
pub(crate) fn scenes(endings: impl Iterator<Item = Ending>) -> impl Iterator<Item = Scene> {
    let scenes = endings.flat_map(|ending| Limit::iter().map(move |limit| (ending, limit)));
    scenes.filter(|(ending, limit)| !ending.is_timeout() || *limit == Limit::Wait).flat_map(
        |(ending, limit)| {
            let holds =
                [(Hold::Body, false), (Hold::Body, true), (Hold::Headers, false), (Hold::Headers, true)];
            holds.map(|(hold, per_request)| Scene { ending, limit, hold, per_request })
        },
    )
}

// === impl Ending ===

impl Ending {
    /// Whether it takes a connection.
    pub(crate) fn is_of_sockets(self) -> bool {
        use Ending::*;
        matches!(
            self,
            Connecting
                | Uploading
                | UploadPanicked
                | Early
                | Refused
                | UploadError
                | UploadCut
                | Garbage
                | Lost
                | GivenUp
                | PanicInConnect
                | PanicInUpload
                | LostInBody
        )
    }

    pub(crate) fn is_timeout(self) -> bool {
        matches!(self, Self::TimedOut | Self::TimedOutAtPace | Self::TimedOutAtTotal)
    }

    pub(crate) fn is_panic(self) -> bool {
        use Ending::*;
        matches!(
            self,
            PanicInReady | PanicInCall | PanicInConnect | PanicInUpload | PanicInFuture | PanicInBody
        )
    }

    /// Whether it is one of the body.
    pub(crate) fn is_of_body(self) -> bool {
        use Ending::*;
        matches!(
            self,
            Untouched
                | AfterFrame
                | WhilePending
                | Read2xx
                | Read5xx
                | LastFrame
                | Trailers
                | BodyError
                | LostInBody
                | PanicInBody
        )
    }

    /// Whether the request gets as far as a permit.
    pub(crate) fn has_started(self) -> bool {
        !self.is_timeout() && !matches!(self, Self::Unpolled | Self::InQueue | Self::AtPace | Self::AtTotal)
    }

    /// Whether the slot is full while the request waits, so that it is somebody else who wakes the next one.
    pub(crate) fn is_behind_another(self) -> bool {
        matches!(self, Self::InQueue | Self::TimedOut)
    }
}

// === impl Scene ===

impl Scene {
    pub(crate) fn layer(self) -> SlotLayer {
        let config = SlotConfig::builder().concurrency(1);
        let config = match self.limit {
            Limit::Nothing => config,
            Limit::Total => config.total_concurrency(1),
            Limit::Pace => config.delay(DELAY),
            Limit::Wait => config.wait_timeout(TIMEOUT),
        };
        // What a request says counts for it alone, and says the opposite of its slot.
        let of_slot = match (self.hold, self.per_request) {
            (hold, false) => hold,
            (Hold::Headers, true) => Hold::Body,
            (_, true) => Hold::Headers,
        };
        support::layer(config.hold(of_slot))
    }

    /// How many others are in flight in the slot until the request has ended.
    pub(crate) fn blockers(self) -> usize {
        usize::from(self.ending.is_behind_another())
    }

    /// Whether the request has a permit when its ending comes.
    pub(crate) fn has_permit(self) -> bool {
        self.ending.has_started() && !(self.ending.is_of_body() && self.hold == Hold::Headers)
    }

    /// Whether the next one has to stand behind it.
    pub(crate) fn is_waited_for(self) -> bool {
        self.has_permit() || matches!(self.fate(), Fate::Gone | Fate::TimedOut)
    }

    /// Whether the next one has to wait for the delay.
    pub(crate) fn is_paced(self) -> bool {
        self.limit == Limit::Pace && (self.ending.has_started() || self.blockers() > 0)
    }

    /// Whether the end itself has the next one look at the gates.
    pub(crate) fn wakes_the_next(self) -> bool {
        use Ending::*;
        self.has_permit() || matches!(self.ending, AtPace | AtTotal | TimedOutAtPace | TimedOutAtTotal)
    }

    pub(crate) fn fate(self) -> Fate {
        use Ending::*;
        match self.ending {
            Unpolled => Fate::NeverAsked,
            InQueue | AtPace | AtTotal => Fate::Gone,
            TimedOut | TimedOutAtPace | TimedOutAtTotal => Fate::TimedOut,
            NotReady | Connecting | Uploading | UploadPanicked | Called => Fate::Cancelled,
            Error | NeverReady | Refused | UploadError | UploadCut | Garbage | Lost | GivenUp => Fate::Failed,
            PanicInReady | PanicInCall | PanicInConnect | PanicInUpload | PanicInFuture => Fate::Failed,
            Empty | Early => Fate::Finished,
            // Over at the headers, whatever becomes of the body.
            _ if self.hold == Hold::Headers => Fate::Finished,
            Untouched | AfterFrame | WhilePending => Fate::Cancelled,
            Read2xx | Read5xx | LastFrame | Trailers => Fate::Finished,
            BodyError | LostInBody | PanicInBody => Fate::Failed,
        }
    }

    /// Puts something in the way of requests that shall end while they wait.
    pub(crate) fn block(self, slots: &Slots) -> Option<SlotPermit> {
        use Ending::*;
        match self.ending {
            InQueue | TimedOut => Some(slots.try_acquire("a.test").unwrap()),
            AtPace | TimedOutAtPace => {
                slots.pause("a.test", Instant::now() + 2 * TIMEOUT);
                None
            }
            AtTotal | TimedOutAtTotal => {
                slots.configure_total(Some(1)).unwrap();
                Some(slots.try_acquire("b.test").unwrap())
            }
            _ => None,
        }
    }

    /// In the end all is as if nobody had been there, and counted once.
    pub(crate) fn check(self, slots: &Slots) {
        let stats = slots.stats("a.test").unwrap();
        assert_eq!((stats.in_flight, stats.waiting), (0, 0), "{self:?}");
        let snapshot = slots.snapshot();
        assert_eq!((snapshot.total.in_flight, snapshot.total.line), (0, 0), "{self:?}");
        let is = |fate| u64::from(self.fate() == fate);
        let counts = counts(slots, "a.test");
        let seen =
            [counts.gone, counts.timed_out, counts.finished, counts.failed, counts.cancelled, counts.refused];
        // The next one and the blocker have finished.
        let others = 1 + self.blockers() as u64;
        let expected = [
            is(Fate::Gone),
            is(Fate::TimedOut),
            others + is(Fate::Finished),
            is(Fate::Failed),
            is(Fate::Cancelled),
            0,
        ];
        assert_eq!(seen, expected, "{self:?}");
        assert_eq!(counts.asked, others + u64::from(self.fate() != Fate::NeverAsked), "{self:?}");
    }
}
