//! What only the inside shows: how many slots one request looks at, and for how many a lock is held.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Weak, mpsc};
use std::time::Duration;

use super::super::sync::MutexGuard;
use super::super::tick::Tick;
use super::*;

const MANY: usize = 3_000;

/// A full table of slots that are idle and have a next start to come: none of them can go.
fn full() -> (Table, Vec<Arc<Slot>>) {
    let config = SlotConfig::builder().max_slots(MANY).delay(Duration::from_secs(900));
    let table = Table::new(&config.idle_timeout(Duration::ZERO).build().unwrap());
    let slots = (0..MANY).map(|n| {
        let slot = table.slot(n.to_string().into()).unwrap();
        slot.release(slot.try_start().unwrap());
        slot
    });
    let slots: Vec<_> = slots.collect();
    assert_eq!(table.shards.iter().map(|shard| shard.lock().len()).sum::<usize>(), MANY);
    assert_eq!(table.len.load(Ordering::Relaxed), MANY);
    (table, slots)
}

/// Which slots were looked at since the last time: looking takes the spare storage of an idle one.
fn visited(slots: &[Weak<Slot>]) -> HashSet<usize> {
    let is_visited = |slot: &Weak<Slot>| {
        let slot = slot.upgrade().unwrap();
        let mut state = slot.state.lock();
        let is_visited = !state.permits.has_storage();
        let two = [state.permits.push(Tick::FIRST), state.permits.push(Tick::FIRST)];
        assert!(two.into_iter().all(|one| state.permits.remove(one).is_some()));
        is_visited
    };
    (0..slots.len()).filter(|n| is_visited(&slots[*n])).collect()
}

// G3, G4
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn no_request_looks_at_more_than_64_slots_and_all_are_looked_at_in_turn() {
    let (table, slots) = full();
    let slots: Vec<_> = slots.into_iter().map(|slot| Arc::downgrade(&slot)).collect();
    let is_full = |key: &str| table.slot(key.into()).unwrap_err().kind() == SlotErrorKind::TooManySlots;
    let due = || table.common.sweep_at.store(0, Ordering::Relaxed);
    let not_due = || table.common.sweep_at.store(u64::MAX, Ordering::Relaxed);
    let requests: [(&str, &dyn Fn(usize)); 4] = [
        ("a piece is due", &|n| {
            due();
            table.slot(n.to_string().into()).unwrap();
        }),
        ("there is no room", &|_| {
            not_due();
            assert!(is_full("new"));
        }),
        ("a piece is due and there is no room", &|_| {
            due();
            assert!(is_full("new"));
        }),
        ("somebody sweeps", &|_| {
            table.sweep_piece();
        }),
    ];
    for (when, request) in requests {
        visited(&slots);
        let mut seen = HashSet::new();
        // Whom a request asks for is in use meanwhile, and is looked at in the next round.
        for n in 0..MANY / PIECE * 3 {
            request(n);
            let now = visited(&slots);
            assert!((1..=64).contains(&now.len()), "{} when {when}, request {n}", now.len());
            seen.extend(now);
        }
        assert_eq!(seen.len(), MANY, "{when}");
    }
    not_due();
    table.slot("7".into()).unwrap();
    assert_eq!(visited(&slots).len(), 0, "nothing is due");
}

// G3
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn one_round_comes_to_every_shard_however_many_there_are_and_wherever_it_begins() {
    const FEW: usize = 300;
    for shards in [8, 9, 12, 64, 65, 1365] {
        let config = SlotConfig::builder().max_slots(shards * SLOTS_PER_SHARD).idle_timeout(Duration::ZERO);
        let table = Table::new(&config.build().unwrap());
        assert_eq!(table.shards.len(), shards);
        // Each piece ends with 64 shards or with 64 slots; the first and the last shard may be cut in two.
        let pieces = shards.div_ceil(recycle::SHARDS_PER_PIECE) + FEW / PIECE + 2;
        for round in 0..5 {
            for n in 0..FEW {
                table.find_or_insert(&SlotKey::from(n.to_string())).unwrap();
            }
            for _ in 0..pieces {
                table.sweep_piece();
            }
            assert_eq!(table.len(), 0, "{shards} shards, round {round}");
        }
    }
}

#[test]
fn which_shard_it_is_says_nothing_of_the_hash_in_there() {
    let table = Table::new(&SlotConfig::builder().max_slots(MANY).build().unwrap());
    let names = (0..MANY).map(|n| n.to_string());
    let hashes = names.map(|name| {
        let (shard, hash) = table.shard(name.as_bytes());
        (table.shards.iter().position(|it| std::ptr::eq(it, shard)).unwrap() as u64, hash)
    });
    let halves = |shard: u64| shard * 2 / table.shards.len() as u64;
    // Of names in each half of the shards, about half have a hash in the upper half.
    let mut seen = [[0; 2]; 2];
    hashes.for_each(|(shard, hash)| seen[halves(shard) as usize][(hash >> 31) as usize] += 1);
    assert!(seen.as_flattened().iter().all(|n| (MANY / 5..MANY * 3 / 10).contains(n)), "{seen:?}");
}

// V1
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn who_looks_at_all_slots_has_no_lock_meanwhile_and_takes_64_at_a_time() {
    let (table, slots) = full();
    let table = Arc::new(table);
    let slots: Vec<_> = slots.into_iter().map(|slot| Arc::downgrade(&slot)).collect();
    let mut seen = HashSet::new();
    let mut most = 0;
    table.for_each(|slot| {
        if seen.is_empty() {
            let (done, is_done) = mpsc::channel();
            let (table, slot) = (table.clone(), slot.clone());
            std::thread::spawn(move || {
                let shards: Vec<_> = table.shards.iter().map(Mutex::lock).collect();
                let in_flight = slot.stats().in_flight;
                let _ = done.send((shards.len(), in_flight));
            });
            assert_eq!(is_done.recv_timeout(Duration::from_secs(10)).unwrap(), (8, 0));
        }
        if seen.len() % 100 < 70 {
            most = slots.iter().filter(|slot| slot.strong_count() > 1).count().max(most);
        }
        assert!(seen.insert(slot.key().clone()));
    });
    assert_eq!(seen.len(), MANY);
    assert_eq!(most, 64);
}

// G4
#[test]
fn to_make_room_one_slot_that_counts_goes_and_no_other_before_its_time() {
    let named = |config: crate::SlotConfigBuilder| {
        let limits = crate::SlotLimits::new();
        (0..50).fold(config, |config, n| config.slot(format!("named {n}"), limits.clone()))
    };
    let fill = |config: crate::SlotConfigBuilder| {
        let table = Table::new(&named(config.max_slots(10)).build().unwrap());
        for key in (0..10).map(|n| n.to_string()).chain((0..50).map(|n| format!("named {n}"))) {
            table.slot(key.as_str().into()).unwrap();
        }
        table
    };
    for sweep_at in [u64::MAX, 0] {
        let table = fill(SlotConfig::builder());
        table.common.sweep_at.store(sweep_at, Ordering::Relaxed);
        table.slot("new".into()).unwrap();
        assert_eq!(table.len(), 60);
        // Named ones that have been idle for long enough go as well, but make no room.
        let table = fill(SlotConfig::builder().idle_timeout(Duration::ZERO));
        table.common.sweep_at.store(sweep_at, Ordering::Relaxed);
        table.slot("new".into()).unwrap();
        assert!(table.find("new".into()).is_some());
    }
}

// G4, on real threads
#[test]
fn the_number_of_slots_is_never_above_the_bound_nor_above_its_count() {
    const MAX: usize = 50;
    let config = SlotConfig::builder().max_slots(MAX).slot("named", crate::SlotLimits::new().concurrency(1));
    let table = Table::new(&config.idle_timeout(Duration::ZERO).build().unwrap());
    let done = AtomicBool::new(false);
    let there = |shards: &[MutexGuard<'_, Shard>]| {
        let slots = shards.iter().flat_map(|shard| (0..shard.len()).filter_map(|place| shard.get(place)));
        slots.filter(|slot| slot.counts()).count()
    };
    let lock = || table.shards.iter().map(Mutex::lock).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let threads = [0; 8].map(|_| {
            scope.spawn(|| {
                for _ in 0..if cfg!(miri) { 8 } else { 5_000 } {
                    let key = fastrand::usize(..2 * MAX).to_string();
                    let _held = [table.slot(key.as_str().into()), table.slot("named".into())];
                    if fastrand::u8(..) == 0 {
                        table.retain_recent();
                    }
                }
            })
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let shards = lock();
                let (there, counted) = (there(&shards), table.len.load(Ordering::Relaxed));
                drop(shards);
                assert!(there <= MAX, "{there}");
                assert!(there <= counted && counted <= MAX, "{there}, counted {counted}");
            }
        });
        let ends: Vec<_> = threads.map(|thread| thread.join()).into();
        done.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok));
    });
    assert_eq!(there(&lock()), table.len.load(Ordering::Relaxed));
}

// G3
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_piece_that_freed_nothing_is_followed_by_a_rest() {
    let table = Table::new(&SlotConfig::default());
    let half: u64 = 30_000_000_000;
    // To look through 1,365 shards takes 21 pieces and another one, however few slots there are.
    assert_eq!(table.sweep_piece(), half / 22);
    let _kept = table.slot("0".into()).unwrap();
    assert_eq!(table.sweep_piece(), half / 22);

    let _kept: Vec<_> = (0..MANY).map(|n| table.slot(n.to_string().into()).unwrap()).collect();
    table.common.sweep_at.store(0, Ordering::Relaxed);
    let before = table.common.epoch.now();
    table.slot("0".into()).unwrap();
    let rest = table.common.sweep_at.load(Ordering::Relaxed) - before.nanos();
    // 46 full pieces and another one.
    assert!(rest >= half / 47, "{rest}");
    assert_eq!(table.sweep_piece(), half / 47);
}

// G3
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn storage_goes_with_the_piece_that_leaves_it_unused() {
    let config = SlotConfig::builder().max_slots(MANY).idle_timeout(Duration::ZERO);
    let table = Table::new(&config.build().unwrap());
    for n in 0..MANY {
        table.find_or_insert(&SlotKey::from(n.to_string())).unwrap();
    }
    while table.len() > 0 {
        table.sweep_piece();
        for shard in &table.shards {
            let shard = shard.lock();
            assert!(shard.capacity() <= 4 * shard.len().max(4), "{}", shard.capacity());
        }
    }
    // And when all go at once.
    for n in 0..MANY {
        table.find_or_insert(&SlotKey::from(n.to_string())).unwrap();
    }
    table.retain_recent();
    assert!(table.shards.iter().all(|shard| shard.lock().capacity() <= 16));
}
