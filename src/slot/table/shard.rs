//! A shard: some of the slots, found by name, and by place for whoever goes through all of them.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::slot::Slot;

/// Places are from 0 on without a hole: a slot keeps its own until it is removed or the last one takes the place of a
/// removed one.
#[derive(Debug, Default)]
pub(super) struct Shard {
    index: HashTable<Entry>,
    /// The hash of the slot at each place, by which the index finds it.
    places: Vec<u32>,
}

/// Four fit into a line of memory, so that a slot is found by its name without another one.
#[derive(Debug)]
struct Entry {
    slot: Arc<Slot>,
    hash: u32,
    place: u32,
}

// === impl Shard ===

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(super) fn find(&self, hash: u32, name: &[u8]) -> Option<&Arc<Slot>> {
        let is_it = |entry: &Entry| entry.hash == hash && entry.slot.key().as_str().as_bytes() == name;
        self.index.find(spread(hash), is_it).map(|entry| &entry.slot)
    }

    pub(super) fn get(&self, place: usize) -> Option<&Arc<Slot>> {
        let hash = *self.places.get(place)?;
        self.index.find(spread(hash), |entry| entry.place as usize == place).map(|entry| &entry.slot)
    }

    pub(super) fn insert(&mut self, hash: u32, slot: Arc<Slot>) {
        // Four thousand million slots would be more than any memory holds.
        let place = self.places.len() as u32;
        self.places.push(hash);
        self.index.insert_unique(spread(hash), Entry { slot, hash, place }, Entry::rehash);
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Arc<Slot>> {
        let hash = *self.places.get(place)?;
        let found = self.index.find_entry(spread(hash), |entry| entry.place as usize == place).ok()?;
        let (entry, _) = found.remove();
        self.places.swap_remove(place);
        if let Some(moved) = self.places.get(place) {
            let from = self.places.len();
            if let Some(moved) = self.index.find_mut(spread(*moved), |entry| entry.place as usize == from) {
                moved.place = place as u32;
            }
        }
        Some(entry.slot)
    }

    /// Gives storage back when most of it is unused.
    pub(super) fn shrink(&mut self) {
        let len = self.len();
        if self.places.capacity() > 4 * len.max(4) {
            self.places.shrink_to(2 * len);
            self.index.shrink_to(2 * len, Entry::rehash);
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }
}

// === impl Entry ===

impl Entry {
    fn rehash(&self) -> u64 {
        spread(self.hash)
    }
}

/// The index uses the lowest and the highest bits.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::SlotConfig;
    use crate::slot::table::Table;

    // One in two has the hash of another one.
    #[test]
    fn every_slot_has_a_place_and_a_name_whoever_goes() {
        let table = Table::new(&SlotConfig::default());
        let mut rng = fastrand::Rng::with_seed(7);
        let mut shard = Shard::default();
        let mut model: HashMap<String, u32> = HashMap::new();
        for n in 0..if cfg!(miri) { 100 } else { 3_000 } {
            if rng.u8(..) < 160 || model.is_empty() {
                let (name, hash) = (n.to_string(), (rng.u32(..) % 500).wrapping_mul(0x0100_0193));
                shard.insert(hash, table.slot(name.as_str().into()).unwrap());
                model.insert(name, hash);
            } else {
                let gone = shard.remove(rng.usize(..model.len())).unwrap();
                assert!(model.remove(gone.key().as_str()).is_some());
                shard.shrink();
            }
            assert_eq!(shard.len(), model.len());
        }
        let by_place = (0..shard.len()).map(|place| shard.get(place).unwrap().key().to_string());
        let by_place: Vec<_> = by_place.collect();
        assert!(by_place.iter().all(|name| model.contains_key(name)));
        assert!(shard.get(by_place.len()).is_none() && shard.remove(by_place.len()).is_none());
        for (name, hash) in &model {
            assert_eq!(shard.find(*hash, name.as_bytes()).unwrap().key().as_str(), name);
            assert!(by_place.contains(name));
            assert!(shard.find(*hash, b"other").is_none() && shard.find(!*hash, name.as_bytes()).is_none());
        }
    }

    // G3
    #[test]
    fn storage_goes_when_three_quarters_are_unused_and_some_is_kept() {
        let table = Table::new(&SlotConfig::default());
        let mut shard = Shard::default();
        shard.places.reserve_exact(64);
        for n in 0..64 {
            shard.insert(n, table.slot(n.to_string().into()).unwrap());
        }
        let shrunk_to = |shard: &mut Shard, len: usize| {
            while shard.len() > len {
                shard.remove(len);
            }
            shard.shrink();
            (shard.capacity(), shard.index.num_buckets())
        };
        let full = shard.index.num_buckets();
        assert_eq!(shrunk_to(&mut shard, 16), (64, full));
        let (places, index) = shrunk_to(&mut shard, 15);
        assert_eq!(places, 30);
        assert!((30..full).contains(&index), "{index}");
        for n in 0..15 {
            assert!(shard.find(n, n.to_string().as_bytes()).is_some());
        }
        // A handful is kept for those who come next.
        assert_eq!(shrunk_to(&mut shard, 5).0, 30 / 3);
        assert_eq!(shrunk_to(&mut shard, 0).0, 30 / 3);
    }
}
