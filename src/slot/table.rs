//! The table of slots: look-up, recycling, and the bound on their number.
//!
//! It is made of many small shards, so that growing, shrinking and looking through it come in small pieces.
//! New handles to a slot come only from the table, under its shard's lock, or from a handle that is alive: so
//! "the table's is the only one", seen under that lock, stays true while it is held.

mod recycle;
mod shard;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use self::shard::Shard;
use super::Slot;
use super::common::Common;
use super::panics::{Panics, each};
use super::settings::{Setting, Settings};
use super::sync::{AtomicBool, AtomicU64, AtomicUsize, KeyHasher, Mutex, Ordering};
use super::tally::Tally;
use crate::config::SlotConfig;
use crate::error::{SlotError, SlotErrorKind};
use crate::jitter::nanos;
use crate::key::{KeyRef, SlotKey};

/// How many slots one request, or one hold of a lock, visits at most.
const PIECE: usize = 64;

/// How many slots a shard is meant for: some less than the 896 for which an index of 1,024 buckets has room, so that
/// nearly none has to grow beyond that by chance.
const SLOTS_PER_SHARD: usize = 768;

#[derive(Debug)]
pub(crate) struct Table {
    common: Arc<Common>,
    settings: RwLock<Settings>,
    hasher: KeyHasher,
    shards: Box<[Mutex<Shard>]>,
    /// Slots that count, those about to be inserted included.
    len: AtomicUsize,
    max: AtomicUsize,
    idle_timeout: AtomicU64,
    /// Whether hosts have to be looked up in the groups.
    has_groups: AtomicBool,
    /// Where the next piece begins: shard in the upper half, place in it, from the end, in the lower.
    cursor: AtomicU64,
    recycled: Mutex<(u64, Tally)>,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(config: &SlotConfig) -> Self {
        let max = config.max_slots.unwrap_or(usize::MAX);
        let shards = (max / SLOTS_PER_SHARD).clamp(8, 2048);
        let settings = Settings::new(config);
        Self {
            common: Arc::new(Common::new(config)),
            has_groups: AtomicBool::new(settings.has_groups()),
            settings: RwLock::new(settings),
            hasher: KeyHasher::default(),
            shards: (0..shards).map(|_| Mutex::new(Shard::default())).collect(),
            len: AtomicUsize::new(0),
            max: AtomicUsize::new(max),
            idle_timeout: AtomicU64::new(nanos(config.idle_timeout)),
            cursor: AtomicU64::new(0),
            recycled: Mutex::new((0, Tally::default())),
        }
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// The slot of that name, made now if need be.
    #[inline]
    pub(crate) fn slot(&self, key: KeyRef<'_>) -> Result<Arc<Slot>, SlotError> {
        let key = self.grouped(key);
        let Some(slot) = self.find_key(&key) else { return self.make(key) };
        if self.common.is_sweep_due() {
            self.tend(false);
        }
        Ok(slot)
    }

    /// The slot of that name, if there is one.
    pub(crate) fn find(&self, key: KeyRef<'_>) -> Option<Arc<Slot>> {
        self.find_key(&self.grouped(key))
    }

    /// A host's group, or else the key as it is.
    #[inline]
    fn grouped<'a>(&self, key: KeyRef<'a>) -> KeyRef<'a> {
        if self.has_groups.load(Ordering::Relaxed) && key.is_host() { self.group(key) } else { key }
    }

    #[inline(never)]
    fn group<'a>(&self, key: KeyRef<'a>) -> KeyRef<'a> {
        let group = key.with_bytes(|host| self.settings().group(host).cloned());
        group.map_or(key, KeyRef::from)
    }

    #[inline]
    fn find_key(&self, key: &KeyRef<'_>) -> Option<Arc<Slot>> {
        key.with_bytes(|name| self.find_name(name))
    }

    fn find_name(&self, name: &[u8]) -> Option<Arc<Slot>> {
        let (shard, hash) = self.shard(name);
        shard.lock().find(hash, name).cloned()
    }

    /// The shard for that name, and the name's hash in there.
    #[inline]
    fn shard(&self, name: &[u8]) -> (&Mutex<Shard>, u32) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name);
        let hash = hasher.finish();
        // The one half of the hash, taken as a fraction, of their number.
        let shard = ((hash >> 32) * self.shards.len() as u64) >> 32;
        (&self.shards[shard as usize], hash as u32)
    }

    #[cold]
    fn make(&self, key: KeyRef<'_>) -> Result<Arc<Slot>, SlotError> {
        let key = key.into_key();
        if self.common.is_closed() {
            return Err(self.refuse(SlotErrorKind::Closed, key));
        }
        let mut slot = self.find_or_insert(&key);
        if self.tend(slot.is_none()) && slot.is_none() {
            slot = self.find_or_insert(&key);
        }
        // The overflow slot needs no room.
        let slot = slot.or_else(|| {
            let overflow = self.settings().overflow.clone();
            self.find_or_insert(&overflow?)
        });
        self.plan_sweep();
        slot.ok_or_else(|| self.refuse(SlotErrorKind::TooManySlots, key))
    }

    /// The slot of that name, made now if there is room for it.
    fn find_or_insert(&self, key: &SlotKey) -> Option<Arc<Slot>> {
        let name = key.as_str().as_bytes();
        let (shard, hash) = self.shard(name);
        let mut shard = shard.lock();
        if let Some(slot) = shard.find(hash, name) {
            return Some(slot.clone());
        }
        // Read under the shard's lock: whoever changes settings later finds the slot there.
        let settings = self.settings();
        let Setting { limits, paused, named } = settings.of(key.as_str());
        let counts = !named && settings.overflow.as_ref() != Some(key);
        drop(settings);
        // The place is reserved before the slot is made, so that there is never one too many; and under the lock,
        // so that of several who ask for the same name at once nobody is in another's way.
        if counts && !self.reserve() {
            return None;
        }
        let slot = Arc::new(Slot::new(key.clone(), counts, self.common.clone(), limits, paused));
        shard.insert(hash, slot.clone());
        Some(slot)
    }

    fn refuse(&self, kind: SlotErrorKind, key: SlotKey) -> SlotError {
        self.recycled.lock().1.refused();
        let error = SlotError::outside(kind, key);
        self.common.telemetry.refused_outside(&error);
        error
    }

    fn reserve(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let more = |len: usize| (len < max).then_some(len + 1);
        self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    // --- all slots

    /// Calls `f` with every slot that is there from beginning to end, a few at a time and without a lock, whatever
    /// panics.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Arc<Slot>)) {
        let mut panics = Panics::default();
        let mut piece: Vec<Arc<Slot>> = Vec::with_capacity(PIECE);
        for shard in &self.shards {
            let mut place = usize::MAX;
            while place > 0 {
                let shard = shard.lock();
                place = place.min(shard.len());
                let start = place.saturating_sub(PIECE);
                piece.extend((start..place).filter_map(|place| shard.get(place).cloned()));
                drop(shard);
                place = start;
                panics.catch(|| each(piece.drain(..), |slot| f(&slot)));
            }
        }
        panics.resume();
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(crate) fn recycled(&self) -> (u64, Tally) {
        self.recycled.lock().clone()
    }

    // --- settings

    fn settings(&self) -> std::sync::RwLockReadGuard<'_, Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes settings; the slots that are there have to be told afterwards.
    pub(crate) fn set(&self, f: impl FnOnce(&mut Settings)) {
        f(&mut self.settings.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Replaces all that is set, but for the cap; the slots that are there have to be told afterwards.
    pub(crate) fn replace_settings(&self, config: &SlotConfig) {
        // Made before the lock and dropped after it: there may be many.
        let mut new = Settings::new(config);
        self.set(|settings| {
            settings.replace(&mut new);
            self.has_groups.store(settings.has_groups(), Ordering::Relaxed);
        });
        self.max.store(config.max_slots.unwrap_or(usize::MAX), Ordering::Relaxed);
        self.idle_timeout.store(nanos(config.idle_timeout), Ordering::Relaxed);
        // The next piece may have been put off for longer than slots are to be kept now.
        let next = self.common.epoch.now().plus(self.sweep_interval()).nanos();
        let sooner = |at| (at != u64::MAX).then_some(next.min(at));
        let _ = self.common.sweep_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner);
    }

    /// Has a slot take the limits that are set for it. They are read under the slot's lock: of two changes at
    /// the same time, the one that comes last to the slot brings the settings of both.
    pub(crate) fn bring_limits(&self, slot: &Slot) {
        slot.set_limits(|| self.settings().of(slot.key().as_str()).limits);
    }

    /// The same for the pause.
    pub(crate) fn bring_pause(&self, slot: &Slot) {
        slot.set_pause(|| self.settings().of(slot.key().as_str()).paused);
    }
}
