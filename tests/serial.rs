//! Statistics as data: every field of the JSON, to the letter.

#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, advance};
use tokio_test::task::spawn;
use tower_slot::{Hold, Jitter, SlotConfig, SlotKey, SlotLimits, Slots};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

// V1
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_json_with_seconds_and_what_is_left_of_moments() {
    let paced = SlotLimits::new()
        .concurrency(3)
        .delay(ms(10_250))
        .jitter(Jitter::up_to(Duration::ZERO))
        .queue_capacity(9)
        .wait_timeout(ms(60_000))
        .hold(Hold::Headers);
    let config = SlotConfig::builder().unlimited_concurrency().slot("paced", paced).total_concurrency(64);
    let slots = Slots::new(config.idle_timeout(ms(1)).build().unwrap());
    let gone = [slots.try_acquire("gone").unwrap(), slots.try_acquire("gone").unwrap()];
    slots.pause("a.com", Instant::now() + ms(7000));
    advance(ms(500)).await;
    drop(gone);
    advance(ms(250)).await;
    slots.retain_recent();

    drop(slots.try_acquire("paced").unwrap());
    let mut first = spawn(slots.acquire("paced"));
    assert!(first.poll().is_pending());
    let mut paused = spawn(slots.acquire("a.com"));
    assert!(paused.poll().is_pending());
    advance(ms(1250)).await;

    let text = serde_json::to_string(&slots.snapshot()).unwrap();
    let none =
        r#"{"concurrency_s":0.0,"pace_s":0.0,"total_s":0.0,"connection_s":0.0,"headers_s":0.0,"body_s":0.0}"#;
    let times = r#"{"concurrency_s":0.0,"pace_s":1.25,"total_s":0.0,"connection_s":0.0,"headers_s":0.0,"body_s":0.0}"#;
    let one = none.replace(r#""body_s":0.0"#, r#""body_s":0.5"#);
    let two = none.replace(r#""body_s":0.0"#, r#""body_s":1.0"#);
    let counts = |asked: u64, done: u64| {
        format!(
            r#"{{"asked":{asked},"started":{done},"refused":0,"timed_out":0,"gone":0,"finished":{done},"failed":0,"cancelled":0}}"#
        )
    };
    let expected = [
        r#"{"slots":[{"key":"a.com","limits":{"concurrency":null,"delay_s":0.0,"jitter":{"ratio":0.0},"#,
        r#""queue_capacity":null,"wait_timeout_s":null,"hold":"body"},"in_flight":0,"waiting":1,"reason":"pace","#,
        r#""oldest_permit_s":null,"oldest_waiter_s":1.25,"next_start_in_s":5.0,"paused_for_s":5.0,"#,
        &format!(r#""stalled_s":null,"times":{times},"longest":{none},"counts":{}}},"#, counts(1, 0)),
        r#"{"key":"paced","limits":{"concurrency":3,"delay_s":10.25,"jitter":{"up_to_s":0.0},"#,
        r#""queue_capacity":9,"wait_timeout_s":60.0,"hold":"headers"},"in_flight":0,"waiting":1,"reason":"pace","#,
        r#""oldest_permit_s":null,"oldest_waiter_s":1.25,"next_start_in_s":9.0,"paused_for_s":null,"#,
        &format!(r#""stalled_s":null,"times":{times},"longest":{none},"counts":{}}}],"#, counts(2, 1)),
        &format!(r#""recycled":{{"slots":1,"times":{two},"longest":{one},"counts":{}}},"#, counts(2, 2)),
        r#""total":{"limit":64,"in_flight":0,"line":0}}"#,
    ];
    assert_eq!(text, expected.concat());
}

// V1
#[tokio::test(start_paused = true)]
async fn what_waits_for_concurrency_or_the_total_says_so() {
    let one = SlotLimits::new().concurrency(1);
    let config = SlotConfig::builder().slot("full", one).total_concurrency(1);
    let slots = Slots::new(config.build().unwrap());
    let held = slots.try_acquire("full").unwrap();
    let mut behind = spawn(slots.acquire("full"));
    assert!(behind.poll().is_pending());
    let mut other = spawn(slots.acquire("other"));
    assert!(other.poll().is_pending());
    advance(ms(500)).await;

    let seen = json(&slots.snapshot());
    assert_eq!(seen["slots"][0]["reason"], "concurrency");
    assert_eq!(seen["slots"][0]["oldest_permit_s"], 0.5);
    assert_eq!(seen["slots"][0]["times"]["concurrency_s"], 0.5);
    assert_eq!(seen["slots"][0]["times"]["body_s"], 0.5);
    assert_eq!(seen["slots"][0]["longest"]["body_s"], 0.0, "nobody has left it");
    assert_eq!(seen["slots"][1]["reason"], "total");
    assert_eq!(seen["slots"][1]["times"]["total_s"], 0.5);
    assert_eq!(seen["total"], json!({"limit": 1, "in_flight": 1, "line": 1}));

    drop(held);
    advance(ms(250)).await;
    let seen = slots.stats("full").unwrap();
    assert_eq!(json(&seen)["stalled_s"], 0.25, "woken, and not polled");
    assert_eq!(json(&seen)["longest"]["body_s"], 0.5);
}

// V1
#[tokio::test(start_paused = true)]
async fn a_slot_alone_counts_moments_from_when_it_is_written() {
    let slots =
        Slots::new(SlotConfig::builder().delay(ms(10_000)).jitter(Jitter::ratio(0.0)).build().unwrap());
    drop(slots.try_acquire("a.com").unwrap());
    let (stats, snapshot) = (slots.stats("a.com").unwrap(), slots.snapshot());
    assert_eq!(json(&stats)["next_start_in_s"], 10.0);
    advance(ms(4000)).await;
    assert_eq!(json(&stats)["next_start_in_s"], 6.0);
    assert_eq!(json(&snapshot)["slots"][0]["next_start_in_s"], 10.0, "from the snapshot on");
    advance(ms(7000)).await;
    assert_eq!(json(&stats)["next_start_in_s"], 0.0, "a moment that is past");
}

// K4, V1
#[tokio::test(start_paused = true)]
async fn a_slot_named_by_a_url_shows_no_password() {
    let slots = Slots::new(SlotConfig::default());
    drop(slots.try_acquire(SlotKey::host("user:secret@A.com.")).unwrap());
    let text = serde_json::to_string(&slots.snapshot()).unwrap();
    assert!(text.contains(r#""key":"a.com""#) && !text.contains("secret"), "{text}");
}
