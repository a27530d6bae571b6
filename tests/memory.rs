//! Memory: a million slots that nobody needs any more leave about nothing behind.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use allocation_counter::measure;
use tokio::time::advance;
use tower_slot::{SlotConfig, Slots};

const HOSTS: usize = 1_000_000;

/// What all the shards of an empty table may keep.
const ABOUT_NOTHING: i64 = 512 * 1024;

/// Starts in the slot and is done.
fn use_slot(slots: &Slots, key: &str) {
    drop(slots.try_acquire(key).unwrap());
}

/// Slots for as many hosts, all of them idle; the bytes they take, and the most that one request allocated.
fn filled(hosts: usize) -> (Slots, i64, u64) {
    let slots = Slots::new(SlotConfig::default());
    let mut most = 0;
    let taken = measure(|| {
        for n in 0..hosts {
            let key = format!("{n}.example.com");
            most = measure(|| use_slot(&slots, &key)).bytes_total.max(most);
        }
    });
    assert_eq!(slots.len(), hosts);
    (slots, taken.bytes_current, most)
}

// G1, G3, case 32
#[tokio::test(start_paused = true)]
async fn the_traffic_after_a_million_hosts_gives_their_memory_back() {
    let (slots, taken, most) = filled(HOSTS);
    println!("{HOSTS} idle slots take {taken} bytes, {} each", taken / HOSTS as i64);
    println!("the most that one request allocated while the table grew: {most} bytes");
    assert!(most <= 64 * 1024, "no request pays for all of the table");
    advance(Duration::from_secs(61)).await;
    let (mut requests, mut most) = (0, 0);
    let given = measure(|| {
        while requests % 256 > 0 || slots.len() > 1 {
            most = measure(|| use_slot(&slots, "busy")).bytes_total.max(most);
            requests += 1;
            assert!(requests <= HOSTS / 64 + 2_000, "{} are still there", slots.len());
        }
    });
    println!("they went with {requests} requests; the most that one of them allocated: {most} bytes");
    assert!(most <= 64 * 1024, "no request pays for all of the table");
    let left = taken + given.bytes_current;
    println!("{left} bytes are left");
    assert!(left <= ABOUT_NOTHING);
    assert_eq!(slots.snapshot().recycled.counts.asked, HOSTS as u64);
}

// G3, case 32
#[tokio::test(start_paused = true)]
async fn retain_recent_gives_the_memory_back_at_once() {
    let (slots, taken, _) = filled(HOSTS / 10);
    advance(Duration::from_secs(61)).await;
    let given = measure(|| slots.retain_recent());
    assert!(slots.is_empty());
    let left = taken + given.bytes_current;
    println!("{left} bytes are left");
    assert!(left <= ABOUT_NOTHING);
}
