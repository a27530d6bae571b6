//! Statistics as text: an aligned table, and one line that says where the time went.

use std::time::Duration;

use tokio::time::advance;
use tokio_test::task::spawn;
use tower_slot::{Phases, SlotConfig, SlotLimits, Slots, Snapshot};

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

/// V1: a column of its own for those whose clients tell when they are connected, and no column for all others.
#[tokio::test(start_paused = true)]
async fn the_time_to_a_connection_has_a_column_where_there_is_one() {
    let slots = Slots::new(SlotConfig::default());
    let _permits = ["a", "b"].map(|key| slots.try_acquire(key).unwrap());
    let mut snapshot = slots.snapshot();
    let columns = |snapshot: &Snapshot| snapshot.to_string().lines().next().unwrap().replace("  ", "|");
    assert!(columns(&snapshot).contains("|total|headers|"), "{snapshot}");

    snapshot.slots[1].times.connection = 2 * SECOND;
    let text = snapshot.to_string();
    let expected = [
        r#"slot  in flight  waiting  oldest  concurrency  pace  total  connection  headers  body  started  not started"#,
        r#""a"         1/8        0       0            0     0      0           0        0     0        1            0"#,
        r#""b"         1/8        0       0            0     0      0       2.0 s        0     0        1            0"#,
        r#"total: 2 in flight; 0 slots recycled, 0 requests in them"#,
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected, "\n{text}");
}

/// V1: whoever was refused, timed out or went away is counted once.
#[tokio::test(start_paused = true)]
async fn all_who_did_not_start_stand_in_one_column() {
    let slots = Slots::new(SlotConfig::default());
    drop(slots.try_acquire("a").unwrap());
    let mut snapshot = slots.snapshot();
    let counts = &mut snapshot.slots[0].counts;
    (counts.refused, counts.timed_out, counts.gone) = (200, 30, 4);
    let text = snapshot.to_string();
    assert_eq!(text.lines().nth(1).unwrap().split_whitespace().last(), Some("234"), "\n{text}");
}

/// V1: in whichever unit takes few characters.
#[tokio::test(start_paused = true)]
async fn times_are_written_in_the_unit_that_fits() {
    let slots = Slots::new(SlotConfig::default());
    let _permit = slots.try_acquire("a").unwrap();
    let mut snapshot = slots.snapshot();
    let nanosecond = Duration::from_nanos(1);
    let expected = [
        (Duration::ZERO, "0"),
        (nanosecond, "0.0 ms"),
        (Duration::from_micros(9_940), "9.9 ms"),
        (Duration::from_millis(10), "10 ms"),
        (SECOND - nanosecond, "999 ms"),
        (SECOND, "1.0 s"),
        (Duration::from_millis(599_940), "599.9 s"),
        (600 * SECOND, "10 min"),
        (3_600 * SECOND, "60 min"),
    ];
    for (time, written) in expected {
        snapshot.slots[0].oldest_permit = Some(time);
        snapshot.slots[0].times.body = SECOND;
        let text = snapshot.to_string();
        let cells = text.lines().nth(1).unwrap().split("  ").filter(|cell| !cell.is_empty());
        assert_eq!(cells.map(str::trim).nth(3), Some(written), "\n{text}");
    }
}

/// V1: the share is rounded, and the first of several that are equal is named.
#[test]
fn the_longest_phase_is_named_with_its_share() {
    let mut times = Phases::default();
    (times.pace, times.total, times.body) = (SECOND, SECOND, SECOND);
    assert_eq!(times.longest(), Some(("pace", 33)));
    times.body = 4 * SECOND;
    assert_eq!(times.longest(), Some(("body", 67)));
    (times.pace, times.total) = (Duration::ZERO, Duration::ZERO);
    assert_eq!(times.longest(), Some(("body", 100)));
}

/// V1
#[test]
fn the_handles_say_in_debug_what_they_are_of() {
    let slots = Slots::new(SlotConfig::default());
    let acquire = slots.acquire("a.com");
    assert_eq!(format!("{acquire:?}"), r#"Acquire { slot: "a.com", .. }"#);
    assert_eq!(format!("{slots:?} {:?}", slots.sweeper()), "Slots { len: 1, .. } Sweeper { .. }");
}
