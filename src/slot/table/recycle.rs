//! Recycling: a slot that has been idle for a while goes, and traffic pays for it piece by piece.

use std::sync::Arc;

use super::shard::Shard;
use super::{PIECE, Table};
use crate::slot::Slot;
use crate::slot::sync::Ordering;
use crate::slot::tick::Tick;

/// How many shards are looked at in search of the slots of one piece.
pub(super) const SHARDS_PER_PIECE: usize = 64;

/// What came of looking through a piece of the table.
#[derive(Default)]
struct Piece {
    visited: usize,
    freed: usize,
    /// Whether one of those freed counted.
    room: bool,
}

// === impl Table ===

impl Table {
    /// Recycles what one piece of the table has to recycle. For whoever does that and nothing else. Returns how
    /// long to wait until the next piece, in nanoseconds.
    pub(crate) fn sweep_piece(&self) -> u64 {
        self.rest_after(&self.piece(true, false))
    }

    /// Looks through one piece of the table if that is due, or else for room; one piece in all. Returns whether
    /// there is room for one more.
    #[cold]
    pub(super) fn tend(&self, for_room: bool) -> bool {
        // Due => Taken. One request at a time pays.
        let due = self.common.is_sweep_due() && self.common.sweep_at.swap(u64::MAX, Ordering::Relaxed) == 0;
        if !due && !for_room {
            return false;
        }
        let piece = self.piece(due, for_room);
        if due {
            let next = self.common.epoch.now().plus(self.rest_after(&piece));
            self.common.sweep_at.store(next.nanos(), Ordering::Relaxed);
        }
        piece.room
    }

    /// The first slot begins the rounds.
    pub(super) fn plan_sweep(&self) {
        let at = &self.common.sweep_at;
        if at.load(Ordering::Relaxed) == u64::MAX {
            let due = self.common.epoch.now().plus(self.sweep_interval());
            let _ = at.compare_exchange(u64::MAX, due.nanos(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// While it pays, go on; else go round in half the idle timeout. In nanoseconds.
    fn rest_after(&self, piece: &Piece) -> u64 {
        if piece.freed * 4 > piece.visited { 0 } else { self.sweep_interval() }
    }

    /// How long to wait between two pieces, in nanoseconds, to go round in half the idle timeout.
    pub(super) fn sweep_interval(&self) -> u64 {
        let by_slots = self.len.load(Ordering::Relaxed) / PIECE;
        let pieces = by_slots.max(self.shards.len() / SHARDS_PER_PIECE) + 1;
        self.idle_timeout() / 2 / pieces as u64
    }

    /// Visits up to [`PIECE`] slots from the cursor on. Recycles those that have been idle for the idle timeout;
    /// and `for_room` one that is idle, for however short a time. Without `to_the_end` it stops when there is room.
    fn piece(&self, to_the_end: bool, for_room: bool) -> Piece {
        let (now, idle_timeout) = (self.common.epoch.now(), self.idle_timeout());
        let cursor = self.cursor.load(Ordering::Relaxed);
        let (mut at, mut place) = ((cursor >> 32) as usize, cursor as u32 as usize);
        let mut piece = Piece::default();
        for _ in 0..SHARDS_PER_PIECE {
            let mut shard = self.shards[at].lock();
            // From the end: the one that takes a removed one's place has been visited already.
            place = place.min(shard.len());
            let mut gone = Vec::new();
            while place > 0 && piece.visited < PIECE && (to_the_end || !piece.room) {
                (place, piece.visited) = (place - 1, piece.visited + 1);
                let Some(slot) = shard.get(place) else { continue };
                let counts = slot.counts();
                // One that does not count would make no room.
                let timeout = if for_room && counts && !piece.room { 0 } else { idle_timeout };
                if is_idle(slot, now, timeout) {
                    piece.freed += 1;
                    piece.room |= counts;
                    gone.extend(self.take(&mut shard, place));
                }
            }
            if !gone.is_empty() {
                shard.shrink();
            }
            drop(shard);
            self.bury(gone);
            if place > 0 {
                break;
            }
            (at, place) = ((at + 1) % self.shards.len(), u32::MAX as usize);
        }
        self.cursor.store((at as u64) << 32 | place as u64, Ordering::Relaxed);
        piece
    }

    /// Recycles all that have been idle for the idle timeout.
    pub(crate) fn retain_recent(&self) {
        let (now, idle_timeout) = (self.common.epoch.now(), self.idle_timeout());
        for shard in &self.shards {
            let mut place = usize::MAX;
            while place > 0 {
                let mut shard = shard.lock();
                place = place.min(shard.len());
                let stop = place.saturating_sub(PIECE);
                let mut gone = Vec::new();
                while place > stop {
                    place -= 1;
                    if shard.get(place).is_some_and(|slot| is_idle(slot, now, idle_timeout)) {
                        gone.extend(self.take(&mut shard, place));
                    }
                }
                shard.shrink();
                drop(shard);
                self.bury(gone);
            }
        }
    }

    fn idle_timeout(&self) -> u64 {
        self.idle_timeout.load(Ordering::Relaxed)
    }

    /// Takes a slot out, and out of the count: under the lock, so that its name finds the room it left.
    fn take(&self, shard: &mut Shard, place: usize) -> Option<Arc<Slot>> {
        let slot = shard.remove(place)?;
        self.len.fetch_sub(usize::from(slot.counts()), Ordering::Relaxed);
        Some(slot)
    }

    fn bury(&self, gone: Vec<Arc<Slot>>) {
        for slot in gone {
            // Nobody else has a handle any more.
            if let Some(slot) = Arc::into_inner(slot) {
                let mut recycled = self.recycled.lock();
                recycled.0 += 1;
                recycled.1.add(&slot.into_tally());
            }
        }
    }
}

/// Called under the shard's lock, where the table's handle can be seen to be the only one.
fn is_idle(slot: &Arc<Slot>, now: Tick, timeout: u64) -> bool {
    Arc::strong_count(slot) == 1 && slot.is_idle(now, timeout)
}
