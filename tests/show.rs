//! Statistics as text: an aligned table, and one line that says where the time went.

use std::time::Duration;

use tokio::time::advance;
use tokio_test::task::spawn;
use tower_slot::{SlotConfig, SlotLimits, Slots};

const SECOND: Duration = Duration::from_secs(1);

/// V1
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_an_aligned_table_and_names_the_longest_phase() {
    let config = SlotConfig::builder()
        .concurrency(2)
        .slot("paced", SlotLimits::new().delay(5 * SECOND).unlimited_concurrency())
        .total_concurrency(8)
        .build();
    let slots = Slots::new(config.unwrap());
    let held = slots.try_acquire("a.com").unwrap();
    let first = slots.try_acquire("paced").unwrap();
    let mut waits = spawn(slots.acquire("paced"));
    assert!(waits.poll().is_pending());
    advance(SECOND).await;
    drop(first);
    advance(3 * SECOND).await;

    let snapshot = slots.snapshot();
    let text = snapshot.to_string();
    let expected = [
        r#"slot     in flight   waiting  oldest  concurrency   pace  total  headers   body  started  not started"#,
        r#""a.com"        1/2         0   4.0 s            0      0      0        0  4.0 s        1            0"#,
        r#""paced"          0  1 (pace)                    0  4.0 s      0        0  1.0 s        1            0"#,
        r#"total: 1/8 in flight, 0 slots in line; 0 slots recycled, 0 requests in them"#,
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected, "\n{text}");
    assert_eq!(slots.stats("a.com").unwrap().to_string(), "a.com: 100 % in body");
    assert_eq!(slots.stats("paced").unwrap().to_string(), "paced: 80 % in pace");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_has_spent_no_time_says_so() {
    let slots = Slots::new(SlotConfig::default());
    drop(slots.try_acquire("a.com").unwrap());
    assert_eq!(slots.stats("a.com").unwrap().to_string(), "a.com: nothing yet");
    assert_eq!(slots.stats("a.com").unwrap().times.longest(), None);
}
