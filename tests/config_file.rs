//! The configuration from a file: every field in three formats, and clear refusals.

#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use tower_slot::{Hold, Jitter, KeyRef, Limits, SlotConfig, SlotErrorKind, SlotLimits, Slots};

const TOML: &str = r#"
concurrency = 4
delay = "200ms"
jitter = "50%"
queue_capacity = 0
wait_timeout = "1m 30s"
hold = "headers"
total_concurrency = 64
idle_timeout = "7s"
max_slots = 1
overflow_slot = "rest"
statistics = false
slots."api.test" = { delay = "50ms", concurrency = "unlimited", queue_capacity = "unlimited" }
slots."*.slow.test" = { delay = "5s", jitter = "100ms", wait_timeout = "unlimited", hold = "body" }
groups.cdn = ["*.cdn.test", "img.test"]
"#;

const JSON: &str = r#"{
    "groups": {"cdn": ["*.cdn.test", "img.test"]},
    "slots": {
        "*.slow.test": {"delay": "5s", "jitter": "100ms", "wait_timeout": "unlimited", "hold": "body"},
        "api.test": {"delay": "50ms", "concurrency": "unlimited", "queue_capacity": "unlimited"}
    },
    "concurrency": 4, "delay": "200ms", "jitter": 0.5, "queue_capacity": 0, "wait_timeout": "90s",
    "hold": "headers", "total_concurrency": 64, "idle_timeout": "7s", "max_slots": 1, "overflow_slot": "rest", "statistics": false
}"#;

const YAML: &str = "
concurrency: 4
delay: 200ms
jitter: 50%
queue_capacity: 0
wait_timeout: 1m 30s
hold: headers
total_concurrency: 64
idle_timeout: 7s
max_slots: 1
overflow_slot: rest
statistics: false
slots:
  api.test: {delay: 50ms, concurrency: unlimited, queue_capacity: unlimited}
  '*.slow.test': {delay: 5s, jitter: 100ms, wait_timeout: unlimited, hold: body}
groups:
  cdn: ['*.cdn.test', img.test]
";

fn toml(text: &str) -> Result<SlotConfig, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
}

fn json(text: &str) -> Result<SlotConfig, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn yaml(text: &str) -> Result<SlotConfig, String> {
    serde_yaml_ng::from_str(text).map_err(|error| error.to_string())
}

fn limits_of(slots: &Slots, key: &str) -> Limits {
    drop(slots.acquire(key));
    slots.stats(key).unwrap().limits
}

fn limits(config: SlotConfig, key: &str) -> Limits {
    limits_of(&Slots::new(config), key)
}

// L1, L5
#[test]
fn every_field_comes_from_toml_json_and_yaml_as_it_does_from_code() {
    let code = SlotConfig::builder()
        .concurrency(4)
        .delay(Duration::from_millis(200))
        .jitter(Jitter::ratio(0.5))
        .queue_capacity(0)
        .wait_timeout(Duration::from_secs(90))
        .hold(Hold::Headers)
        .total_concurrency(64)
        .idle_timeout(Duration::from_secs(7))
        .max_slots(1)
        .overflow_slot("rest")
        .statistics(false)
        .slot(
            "api.test",
            SlotLimits::new().delay(Duration::from_millis(50)).unlimited_concurrency().unbounded_queue(),
        )
        .slot(
            "*.slow.test",
            SlotLimits::new()
                .delay(Duration::from_secs(5))
                .jitter(Jitter::up_to(Duration::from_millis(100)))
                .no_wait_timeout()
                .hold(Hold::Body),
        )
        .group("cdn", ["*.cdn.test", "img.test"])
        .build()
        .unwrap();
    for config in [toml(TOML), json(JSON), yaml(YAML)] {
        assert_eq!(format!("{:?}", config.unwrap()), format!("{code:?}"));
    }
    let slots = Slots::new(toml(TOML).unwrap());
    let api = limits_of(&slots, "api.test");
    assert_eq!((api.concurrency, api.queue_capacity, api.hold), (None, None, Hold::Headers));
    let permit = slots.try_acquire(KeyRef::host("x.cdn.test")).unwrap();
    assert_eq!(permit.key().as_str(), "cdn");
}

#[test]
fn nothing_in_the_file_is_the_default_and_no_limit_can_be_said() {
    let default = format!("{:?}", SlotConfig::default());
    for config in [toml(""), json("{}"), yaml("{}")] {
        assert_eq!(format!("{:?}", config.unwrap()), default);
    }
    let none = "total_concurrency = \"unlimited\"\nmax_slots = \"unlimited\"\nconcurrency = \"unlimited\"";
    let config = SlotConfig::builder().unlimited_total().unlimited_slots().unlimited_concurrency();
    assert_eq!(format!("{:?}", toml(none).unwrap()), format!("{:?}", config.build().unwrap()));
}

#[test]
fn jitter_is_a_share_or_a_time() {
    for (text, jitter) in [
        ("0.5", Jitter::ratio(0.5)),
        ("1", Jitter::ratio(1.0)),
        ("0", Jitter::ratio(0.0)),
        ("\"25%\"", Jitter::ratio(0.25)),
        ("\"7.5 %\"", Jitter::ratio(0.075)),
        ("\"100ms\"", Jitter::up_to(Duration::from_millis(100))),
    ] {
        assert_eq!(limits(toml(&format!("jitter = {text}")).unwrap(), "a").jitter, jitter, "{text}");
    }
}

// Case 27
#[test]
fn a_time_too_long_is_refused_or_capped() {
    let years = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    for text in
        ["delay = \"18446744073709551615s\"", "delay = \"1000000000000000000s\"", "delay = \"31years\""]
    {
        assert_eq!(limits(toml(text).unwrap(), "a").delay, years, "{text}");
    }
    let expected = "expected a time with its unit such as \"200ms\" or \"1m 30s\"";
    for (value, seen) in [
        ("1e18", "found floating point `1000000000000000000.0`"),
        ("1e18s", "found string \"1e18s\""),
        ("18446744073709551616s", "found string \"18446744073709551616s\""),
        ("18446744073709551615years", "found string \"18446744073709551615years\""),
        ("-1s", "found string \"-1s\""),
        ("unlimited", "found string \"unlimited\""),
        ("200", "found integer `200`"),
    ] {
        let quoted = if value.parse::<f64>().is_ok() { value.to_owned() } else { format!("\"{value}\"") };
        let error = json(&format!("{{\"delay\": {quoted}}}")).unwrap_err();
        assert!(error.starts_with(&format!("all slots: delay: {seen}")), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_unknown_field_is_refused_with_the_nearest_known_one() {
    for (text, expected) in [
        ("dealy = \"1s\"", "all slots: unknown field \"dealy\", did you mean \"delay\"?"),
        ("Delay = \"1s\"", "all slots: unknown field \"Delay\", did you mean \"delay\"?"),
        ("slot = {}", "all slots: unknown field \"slot\", did you mean \"slots\"?"),
        ("max_slot = 1", "all slots: unknown field \"max_slot\", did you mean \"max_slots\"?"),
        ("total = 1", "all slots: unknown field \"total\", did you mean \"total_concurrency\"?"),
        (
            "slots.\"a.test\".concurency = 1",
            "slot \"a.test\": unknown field \"concurency\", did you mean \"concurrency\"?",
        ),
        ("slots.a.max_slots = 1", "slot \"a\": unknown field \"max_slots\", did you mean \"wait_timeout\"?"),
    ] {
        assert_eq!(toml(text).unwrap_err(), expected);
    }
    let error = yaml("slots:\n  a: {dealy: 1s}\n").unwrap_err();
    assert!(error.contains("slot \"a\": unknown field \"dealy\", did you mean \"delay\"?"), "{error}");
}

// L1
#[test]
fn a_value_that_cannot_be_is_refused_with_the_words_of_the_code() {
    let same = [
        ("concurrency = 0", SlotConfig::builder().concurrency(0).build()),
        ("total_concurrency = 0", SlotConfig::builder().total_concurrency(0).build()),
        ("max_slots = 0", SlotConfig::builder().max_slots(0).build()),
        ("jitter = 2", SlotConfig::builder().jitter(Jitter::ratio(2.0)).build()),
        ("jitter = -0.5", SlotConfig::builder().jitter(Jitter::ratio(-0.5)).build()),
        ("jitter = nan", SlotConfig::builder().jitter(Jitter::ratio(f64::NAN)).build()),
        ("jitter = \"101%\"", SlotConfig::builder().jitter(Jitter::ratio(1.01)).build()),
        ("slots.\"*.a.\" = {}", SlotConfig::builder().slot("*.a.", SlotLimits::new()).build()),
        (
            "slots.a.concurrency = 0",
            SlotConfig::builder().slot("a", SlotLimits::new().concurrency(0)).build(),
        ),
        ("groups.g = [\"A\"]", SlotConfig::builder().group("g", ["A"]).build()),
    ];
    for (text, code) in same {
        assert_eq!(toml(text).unwrap_err(), code.unwrap_err().to_string(), "{text}");
    }
    let of_count = "expected a whole number, or \"unlimited\"";
    for (text, expected) in [
        ("concurrency = -1", format!("all slots: concurrency: found integer `-1`, {of_count}")),
        ("concurrency = 1.5", format!("all slots: concurrency: found floating point `1.5`, {of_count}")),
        (
            "slots.a.queue_capacity = \"many\"",
            format!("slot \"a\": queue_capacity: found string \"many\", {of_count}"),
        ),
        (
            "hold = \"head\"",
            "all slots: hold: found string \"head\", expected \"body\" or \"headers\"".to_owned(),
        ),
    ] {
        assert_eq!(toml(text).unwrap_err(), expected);
    }
}

#[test]
fn what_is_set_twice_is_refused() {
    for (text, expected) in [
        (r#"{"delay": "1s", "delay": "2s"}"#, "all slots: delay is set twice"),
        (r#"{"slots": {"a": {"delay": "1s", "delay": "2s"}}}"#, "slot \"a\": delay is set twice"),
        (r#"{"slots": {"a": {}, "a": {}}}"#, "\"a\" is set twice"),
        (r#"{"groups": {"a": [], "a": []}}"#, "\"a\" is set twice"),
        (r#"{"slots": {}, "slots": {}}"#, "all slots: slots is set twice"),
    ] {
        let error = json(text).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn limits_alone_can_be_read() {
    let limits: SlotLimits = serde_json::from_str(r#"{"delay": "1s", "concurrency": 2}"#).unwrap();
    assert_eq!(limits, SlotLimits::new().delay(Duration::from_secs(1)).concurrency(2));
    // Checked when they are used.
    let limits: SlotLimits = serde_json::from_str(r#"{"concurrency": 0}"#).unwrap();
    let slots = Slots::new(SlotConfig::default());
    assert_eq!(slots.configure("a", limits).unwrap_err().field(), "concurrency");
}

// L6
#[test]
fn a_file_can_be_reloaded() {
    let slots = Slots::new(toml("concurrency = 1").unwrap());
    let _held = slots.try_acquire("a").unwrap();
    assert_eq!(slots.try_acquire("a").unwrap_err().kind(), SlotErrorKind::QueueFull);
    slots.reload(toml("concurrency = 2").unwrap());
    drop(slots.try_acquire("a").unwrap());
}
