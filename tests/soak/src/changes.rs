//! Changes of limits, of the cap and of pauses while requests go on, and recycling. What is in force then is worked
//! out here a second time: the exact name, then the pattern, then the defaults.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;
use tower_slot::{Jitter, SlotConfig, SlotConfigBuilder, SlotLimits, Slots};

use crate::BoxError;
use crate::hosts::{self, Origin, PATTERNS};
use crate::ledger::{Ledger, Limit};

/// How many slots there may be, those with limits of their own not counted.
const MAX_SLOTS: usize = 120;

#[derive(Debug)]
pub(crate) struct Changes {
    rng: Rng,
    slots: Slots,
    ledger: Arc<Ledger>,
    book: Book,
    done: u64,
}

/// The concurrency that was set.
#[derive(Clone, Debug)]
struct Book {
    defaults: Limit,
    patterns: [Option<Limit>; PATTERNS],
    names: HashMap<usize, Limit>,
    total: Limit,
}

// === impl Changes ===

impl Changes {
    /// Slots, the ledger that knows their limits, and what will change both.
    pub(crate) fn begin(mut rng: Rng) -> Result<(Slots, Arc<Ledger>, Self), BoxError> {
        let (config, book) = config(&mut rng);
        let slots = Slots::new(config.build()?);
        let ledger = Arc::new(Ledger::new(|host| book.limit(host), book.total));
        let changes = Self { rng, slots: slots.clone(), ledger: ledger.clone(), book, done: 0 };
        Ok((slots, ledger, changes))
    }

    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Does what is to be done in one second.
    pub(crate) fn second(&mut self, second: u64) -> Result<(), BoxError> {
        for _ in 0..3 {
            let host = hosts::named(&mut self.rng);
            let limits = self.limits(|book, concurrency| {
                book.names.insert(host, concurrency);
            });
            self.change(|slots| Ok(slots.configure(hosts::name(host), limits)?))?;
            self.pause(self.done % 2 == 0);
        }
        let pattern = self.rng.usize(..PATTERNS);
        let limits = self.limits(|book, concurrency| book.patterns[pattern] = Some(concurrency));
        self.change(|slots| Ok(slots.configure(hosts::pattern(pattern), limits)?))?;
        if second % 2 == 0 {
            let total = total(&mut self.rng);
            self.book.total = total;
            self.change(|slots| Ok(slots.configure_total(total)?))?;
        }
        // Not too often: it has every first waiter look anew, and so would heal a wakeup that was lost.
        if second % 7 == 3 {
            let limits = self.limits(|book, concurrency| book.defaults = concurrency);
            self.change(|slots| Ok(slots.configure_default(limits)?))?;
        }
        if second % 11 == 10 {
            let (config, book) = config(&mut self.rng);
            self.book = book;
            let config = config.build()?;
            self.change(|slots| {
                slots.reload(config);
                Ok(())
            })?;
        }
        self.slots.retain_recent();
        Ok(())
    }

    /// New limits, entered into the book.
    fn limits(&mut self, enter: impl FnOnce(&mut Book, Limit)) -> SlotLimits {
        let (limits, concurrency) = limits(&mut self.rng);
        enter(&mut self.book, concurrency);
        limits
    }

    fn change(&mut self, change: impl FnOnce(&Slots) -> Result<(), BoxError>) -> Result<(), BoxError> {
        self.done += 1;
        let mut result = Ok(());
        self.ledger.change(|host| self.book.limit(host), self.book.total, || result = change(&self.slots));
        result
    }

    fn pause(&mut self, resumes: bool) {
        self.done += 1;
        let host = hosts::named(&mut self.rng) + self.rng.usize(..5);
        let until = Instant::now() + Duration::from_millis(self.rng.u64(150..700));
        self.ledger.pause(host, Some(until), || self.slots.pause(hosts::name(host), until));
        if resumes {
            self.ledger.pause(host, None, || self.slots.resume(hosts::name(host).as_str()));
        }
    }
}

fn config(rng: &mut Rng) -> (SlotConfigBuilder, Book) {
    let concurrency = rng.usize(1..5);
    let (defaults, total) = (Some(concurrency), total(rng));
    let mut book = Book { defaults, patterns: [None; PATTERNS], names: HashMap::new(), total };
    let config = SlotConfig::builder().concurrency(concurrency);
    let config = match book.total {
        Some(total) => config.total_concurrency(total),
        None => config.unlimited_total(),
    };
    let idle = Duration::from_millis(rng.u64(50..400));
    let mut config = config.idle_timeout(idle).max_slots(MAX_SLOTS);
    for _ in 0..20 {
        let (host, (limits, concurrency)) = (hosts::named(rng), self::limits(rng));
        book.names.insert(host, concurrency);
        config = config.slot(hosts::name(host), limits);
    }
    (config, book)
}

/// All limits of a slot, and the concurrency among them.
fn limits(rng: &mut Rng) -> (SlotLimits, Limit) {
    let concurrency = (rng.u8(..16) > 0).then(|| rng.usize(1..5));
    let limits = SlotLimits::new();
    let limits = match concurrency {
        Some(n) => limits.concurrency(n),
        None => limits.unlimited_concurrency(),
    };
    let delay = if rng.u8(..3) == 0 { rng.u64(..4_000) } else { 0 };
    let limits = limits.delay(Duration::from_micros(delay)).jitter(Jitter::ratio(rng.f64()));
    let limits = match rng.u8(..5) {
        0 => limits.queue_capacity(rng.usize(..12)),
        _ => limits.unbounded_queue(),
    };
    let limits = match rng.u8(..5) {
        0 => limits.wait_timeout(Duration::from_millis(rng.u64(5..300))),
        _ => limits.no_wait_timeout(),
    };
    (limits, concurrency)
}

fn total(rng: &mut Rng) -> Limit {
    rng.bool().then(|| rng.usize(4..80))
}

// === impl Book ===

impl Book {
    fn limit(&self, host: usize) -> Limit {
        let set = match hosts::origin(host) {
            Origin::Name => self.names.get(&host).copied(),
            Origin::Pattern(pattern) => self.patterns[pattern],
            Origin::Defaults => None,
        };
        set.unwrap_or(self.defaults)
    }
}
