//! Groups: hosts that match share one slot.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::convert::Infallible;
use std::future::Ready;
use std::time::Duration;

use allocation_counter::measure;
use futures_util::FutureExt;
use http::{Request, Response};
use proptest::prelude::*;
use tower::{Layer, Service};
use tower_slot::{
    KeyRef, SlotConfig, SlotConfigBuilder, SlotErrorKind, SlotKey, SlotLayer, SlotLimits, Slots,
};

fn inner() -> impl Service<
    Request<()>,
    Response = Response<String>,
    Error = Infallible,
    Future = Ready<Result<Response<String>, Infallible>>,
> + Clone {
    tower::service_fn(|_: Request<()>| std::future::ready(Ok(Response::new(String::new()))))
}

fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).unwrap()
}

fn slots(config: SlotConfigBuilder) -> Slots {
    Slots::new(config.build().unwrap())
}

/// The slot that a request goes through.
fn slot_of(config: &SlotConfigBuilder, request: Request<()>) -> SlotKey {
    let slots = slots(config.clone());
    let mut service = SlotLayer::with_slots(slots.clone()).layer(inner());
    service.call(request).now_or_never().unwrap().unwrap();
    slots.snapshot().slots.remove(0).key
}

/// In whatever order they are defined.
fn two_orders(groups: &[(&'static str, &[&'static str])]) -> [SlotConfigBuilder; 2] {
    let add = |config: SlotConfigBuilder, (name, hosts): &(&'static str, &[&'static str])| {
        config.group(*name, hosts.iter().copied())
    };
    [groups.iter().fold(SlotConfig::builder(), add), groups.iter().rev().fold(SlotConfig::builder(), add)]
}

// K2, L5
#[test]
fn the_exact_host_comes_before_the_longest_pattern_in_any_order() {
    let groups: [(&str, &[&str]); 4] = [
        ("cdn", &["*.cdn.test", "img.test"]),
        ("eu", &["*.eu.cdn.test"]),
        ("one", &["x.eu.cdn.test", "::1", "192.0.2.1"]),
        ("any", &["*.test"]),
    ];
    let table = [
        ("a.cdn.test", "cdn"),
        ("A.B.CDN.Test.:8080", "cdn"),
        ("u:p@img.test", "cdn"),
        ("y.eu.cdn.test", "eu"),
        ("x.eu.cdn.test", "one"),
        ("eu.cdn.test", "cdn"),
        ("cdn.test", "any"),
        ("mycdn.test", "any"),
        ("[0:0::1]:80", "one"),
        ("192.0.2.1", "one"),
        ("test", "test"),
        ("a.test.example", "a.test.example"),
        ("192.0.2.2", "192.0.2.2"),
    ];
    for config in two_orders(&groups) {
        for (host, expected) in table {
            assert_eq!(slot_of(&config, get(host)), SlotKey::new(expected), "{host}");
            let with_header = Request::get("/p").header("host", host).body(()).unwrap();
            if !host.contains('@') {
                assert_eq!(slot_of(&config, with_header), SlotKey::new(expected), "{host} in the header");
            }
        }
    }
}

// K3
#[test]
fn a_key_that_was_given_is_taken_as_it_is() {
    let config = SlotConfig::builder().group("cdn", ["img.test"]);
    let mut request = get("a.test");
    request.extensions_mut().insert(SlotKey::host("img.test"));
    assert_eq!(slot_of(&config, request), SlotKey::new("img.test"));
    // By name it is found under its own, as a host under the group's.
    let slots = slots(config.concurrency(1));
    let permit = slots.try_acquire(KeyRef::host("IMG.test")).unwrap();
    assert_eq!(slots.try_acquire("cdn").unwrap_err().kind(), SlotErrorKind::QueueFull);
    drop(slots.try_acquire("img.test").unwrap());
    assert_eq!(permit.key(), &SlotKey::new("cdn"));
    assert_eq!(slots.stats(KeyRef::host("img.test")).unwrap().key, SlotKey::new("cdn"));
}

// L5
#[test]
fn a_group_has_the_limits_of_the_slot_of_its_name() {
    let config = SlotConfig::builder()
        .concurrency(3)
        .group("cdn", ["*.cdn.test"])
        .slot("cdn", SlotLimits::new().concurrency(1))
        .slot("*.cdn.test", SlotLimits::new().delay(Duration::from_secs(9)))
        .slot("a.cdn.test", SlotLimits::new().concurrency(7));
    let slots = slots(config);
    let permit = slots.try_acquire(KeyRef::host("a.cdn.test")).unwrap();
    let stats = slots.stats("cdn").unwrap();
    assert_eq!((stats.limits.concurrency, stats.limits.delay), (Some(1), Duration::ZERO));
    slots.try_acquire(KeyRef::host("b.cdn.test")).unwrap_err();
    drop(permit);
}

// A chain of groups is none: one step.
#[test]
fn a_group_may_be_called_like_a_host() {
    let config = SlotConfig::builder().group("a.test", ["b.test"]).group("c", ["a.test"]);
    assert_eq!(slot_of(&config, get("b.test")), SlotKey::new("a.test"));
    assert_eq!(slot_of(&config, get("a.test")), SlotKey::new("c"));
}

// G4
#[test]
fn the_slot_of_a_group_is_named_in_the_config_and_never_refused() {
    let slots = slots(SlotConfig::builder().max_slots(1).group("cdn", ["*.cdn.test"]));
    let _held = slots.try_acquire(KeyRef::host("a.test")).unwrap();
    assert_eq!(slots.try_acquire(KeyRef::host("b.test")).unwrap_err().kind(), SlotErrorKind::TooManySlots);
    drop(slots.try_acquire(KeyRef::host("a.cdn.test")).unwrap());
}

// L1
#[test]
fn names_that_are_malformed_or_in_two_groups_are_refused() {
    let host = |host: &'static str| SlotConfig::builder().group("g", ["ok.test", host]);
    let malformed = "lower case, no port, no dot at the end";
    for name in [
        "A.test",
        "a.test.",
        "a.test:80",
        "u@a.test",
        "http://a.test",
        "a b",
        "",
        "*",
        "a.*",
        "**.test",
        "[::1]",
        "0:0::1",
        "a/b",
        "a%20b",
        "*a.test",
        "ä.test",
    ] {
        let error = host(name).build().unwrap_err();
        assert_eq!((error.slot(), error.field()), (Some(&SlotKey::new("g")), "group"), "{name}");
        let text = format!("slot \"g\": group: {name:?} is not a host as host keys are written: {malformed}");
        assert_eq!(error.to_string(), text);
    }
    for name in ["*.", "*.*.test", "*.A.test", "*.a.", "*..a", "*.a:80", "*.::1"] {
        let text =
            format!("slot \"g\": group: {name:?} is not a pattern as host keys are written: {malformed}");
        assert_eq!(host(name).build().unwrap_err().to_string(), text);
    }
    for name in ["a", "a.test", "a_b.test", "::1", "192.0.2.1", "xn--bcher-kva.test", "*.a", "*.a-b.test"] {
        host(name).build().unwrap();
    }
    for name in ["", "*", "*.cdn.test"] {
        assert_eq!(SlotConfig::builder().group(name, ["a"]).build().unwrap_err().field(), "group", "{name}");
    }
    for twice in ["img.test", "*.cdn.test"] {
        for config in two_orders(&[("a", &["x.test", twice]), ("b", &[twice])]) {
            let text = format!("slot \"b\": group: {twice:?} is in the group \"a\" too");
            assert_eq!(config.build().unwrap_err().to_string(), text);
        }
    }
    // The same group may be added to, and may say a host twice.
    let config = SlotConfig::builder().group("a", ["x.test"]).group("a", ["x.test", "y.test"]);
    assert_eq!(slot_of(&config, get("y.test")), SlotKey::new("a"));
}

// K2, S5
#[test]
fn finding_a_slot_through_its_group_allocates_nothing() {
    let slots = slots(SlotConfig::builder().group("cdn", ["*.cdn.test", "img.test"]));
    for host in ["a.b.c.cdn.test", "A.CDN.test:80", "img.test", "other.test", "Other.Test"] {
        drop(slots.try_acquire(KeyRef::host(host)).unwrap());
        let again = measure(|| drop(slots.try_acquire(KeyRef::host(host)).unwrap()));
        assert_eq!(again.count_total, 0, "{host}");
    }
    assert_eq!(slots.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    // K2: against a model that looks at every pattern.
    #[test]
    fn a_host_is_in_the_group_of_the_longest_pattern_that_matches(
        hosts in proptest::collection::vec("[ab](\\.[ab]){0,4}", 1..8),
        ends in proptest::collection::btree_set("(\\*\\.)?[ab](\\.[ab]){0,3}", 0..8),
    ) {
        let name = |end: &str| format!("group {}", end.replace('*', "of all"));
        let config = ends.iter().fold(SlotConfig::builder(), |config, end| {
            config.group(name(end), [end.as_str()])
        });
        for host in hosts {
            let matches = |end: &&String| match end.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => **end == host,
            };
            let rank = |end: &&String| (!end.starts_with('*'), end.len());
            let group = ends.iter().filter(matches).max_by_key(rank);
            let expected = group.map_or(host.clone(), |end| name(end));
            prop_assert_eq!(slot_of(&config, get(&host)), SlotKey::from(expected));
        }
    }
}
