//! Slots per address: one look-up for all who wait, answers kept for a while, and one key whatever the order of a name's
//! addresses.

#![cfg(feature = "resolve")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod hosts;

use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt};
use tower_slot::{
    Extracted, KeyExtractor, PerIp, Resolve, Resolving, SlotConfig, SlotError, SlotErrorKind, SlotKey,
    SlotLayer, SystemResolver, Unresolved, UnresolvedError,
};

use hosts::{Hosts, key};

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/")).body(()).unwrap()
}

/// The key of a host that needs no waiting.
#[track_caller]
fn at_once<R: Resolve>(per_ip: &PerIp<R>, host: &str) -> SlotKey {
    match per_ip.extract(&get(host)) {
        Extracted::Key(key) => key.into_key(),
        other => panic!("{other:?}"),
    }
}

// --- one slot

// K3, Q1
#[tokio::test(start_paused = true)]
async fn first_requests_to_names_on_one_address_share_its_slot_while_it_is_looked_up() {
    let hosts = Hosts::slow(millis(200));
    let names = ["a.test", "b.test", "c.test", "d.test", "e.test"];
    names.iter().for_each(|name| hosts.set(name, &["192.0.2.1"]));
    let layer = SlotLayer::new(SlotConfig::builder().concurrency(1).build().unwrap())
        .key_extractor(PerIp::new(hosts.clone()));
    let slots = layer.slots().clone();
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let service = layer.layer(tower::service_fn({
        let (now, peak) = (now.clone(), peak.clone());
        move |_: Request<()>| {
            let (now, peak) = (now.clone(), peak.clone());
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(millis(10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(String::new()))
            }
        }
    }));
    let begin = Instant::now();
    let requests = names.into_iter().cycle().take(10);
    let requests: Vec<_> = requests.map(|name| tokio::spawn(service.clone().oneshot(get(name)))).collect();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    // One after the other, as soon as the names are known.
    assert_eq!(begin.elapsed(), millis(200 + 10 * 10));
    assert_eq!(peak.load(Ordering::SeqCst), 1);
    assert_eq!(slots.len(), 1);
    assert_eq!(slots.stats("192.0.2.1").unwrap().counts.started, 10);
    let mut asked = hosts.asked();
    asked.sort();
    assert_eq!(asked, names);
}

// --- one key

#[tokio::test(start_paused = true)]
async fn a_name_keeps_its_key_when_its_addresses_come_in_another_order() {
    let hosts = Hosts::turning();
    hosts.set("a.test", &["2001:db8::1", "192.0.2.10", "192.0.2.9", "198.51.100.1"]);
    let per_ip = PerIp::new(hosts.clone());
    for round in 1..=8 {
        assert_eq!(key(&per_ip, &get("a.test")).await.unwrap(), SlotKey::new("192.0.2.9"), "{round}");
        assert_eq!(hosts.lookups(), round);
        advance(Duration::from_secs(60)).await;
    }
}

// K2
#[tokio::test(start_paused = true)]
async fn the_smallest_ipv4_address_names_the_slot_before_any_ipv6_one() {
    let hosts = Hosts::default();
    let table: [(&[&str], &str); 5] = [
        (&["192.0.2.10", "192.0.2.9"], "192.0.2.9"),
        (&["::1", "203.0.113.1"], "203.0.113.1"),
        (&["2001:db8::10", "2001:db8::9"], "2001:db8::9"),
        (&["::ffff:192.0.2.7", "192.0.2.8"], "192.0.2.7"),
        (&["2001:DB8:0:0::1"], "2001:db8::1"),
    ];
    let per_ip = PerIp::new(hosts.clone());
    for (n, (addresses, expected)) in table.into_iter().enumerate() {
        let name = format!("h{n}.test");
        hosts.set(&name, addresses);
        assert_eq!(key(&per_ip, &get(&name)).await.unwrap(), SlotKey::new(expected), "{addresses:?}");
    }
}

// K2, case 29
#[test]
fn addresses_and_localhost_need_no_lookup() {
    let hosts = Hosts::default();
    let per_ip = PerIp::new(hosts.clone());
    let table = [
        ("127.0.0.1:80", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("LocalHost.:8080", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("[2001:DB8:0::1]", "2001:db8::1"),
        ("[::ffff:192.0.2.1]", "192.0.2.1"),
        ("u:p@192.0.2.1:80", "192.0.2.1"),
    ];
    for (host, expected) in table {
        assert_eq!(at_once(&per_ip, host), SlotKey::new(expected), "{host}");
    }
    let no_host = Request::get("/p").body(()).unwrap();
    assert!(
        matches!(per_ip.extract(&no_host), Extracted::Key(key) if key.clone().into_key().as_str().is_empty())
    );
    assert_eq!(hosts.lookups(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_asked_for_in_its_one_form() {
    let hosts = Hosts::default();
    hosts.set("a.test", &["192.0.2.1"]);
    let per_ip = PerIp::new(hosts.clone());
    for host in ["A.Test.:80", "a.test", "u:p@a.TEST"] {
        assert_eq!(key(&per_ip, &get(host)).await.unwrap(), SlotKey::new("192.0.2.1"));
    }
    assert_eq!(hosts.asked(), ["a.test"]);
}

// --- one look-up

#[tokio::test(start_paused = true)]
async fn whoever_waits_goes_on_when_the_one_who_drives_is_dropped() {
    let hosts = Hosts::slow(millis(200));
    hosts.set("a.test", &["192.0.2.1"]);
    let per_ip = PerIp::new(hosts.clone());
    let later = |per_ip: &PerIp<Hosts>| match per_ip.extract(&get("a.test")) {
        Extracted::Later(key) => task::spawn(key),
        other => panic!("{other:?}"),
    };
    let (mut first, mut second, mut third) = (later(&per_ip), later(&per_ip), later(&per_ip.clone()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    advance(millis(100)).await;
    drop(first);
    advance(millis(101)).await;
    assert!(second.is_woken());
    // Nor does it matter that this one was never polled before.
    assert_eq!(assert_ready!(third.poll()).unwrap(), SlotKey::new("192.0.2.1"));
    assert_eq!(assert_ready!(second.poll()).unwrap(), SlotKey::new("192.0.2.1"));
    assert_eq!(hosts.lookups(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_all_have_left_is_taken_up_by_the_next() {
    let hosts = Hosts::slow(millis(200));
    hosts.set("a.test", &["192.0.2.1"]);
    let per_ip = PerIp::new(hosts.clone());
    for _ in 0..3 {
        assert!(tokio::time::timeout(millis(60), key(&per_ip, &get("a.test"))).await.is_err());
    }
    let begin = Instant::now();
    assert_eq!(key(&per_ip, &get("a.test")).await.unwrap(), SlotKey::new("192.0.2.1"));
    assert_eq!((begin.elapsed(), hosts.lookups()), (millis(20), 1));
}

#[tokio::test(start_paused = true)]
async fn nobody_looks_up_what_nobody_polls() {
    let hosts = Hosts::default();
    let per_ip = PerIp::new(hosts.clone());
    drop(per_ip.extract(&get("a.test")));
    assert_eq!(hosts.lookups(), 0);
}

// --- for a while

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_its_time_from_when_it_came() {
    let hosts = Hosts::slow(millis(200));
    hosts.set("a.test", &["192.0.2.1"]);
    for (per_ip, ttl) in [
        (PerIp::new(hosts.clone()), Duration::from_secs(60)),
        (PerIp::new(hosts.clone()).ttl(millis(500)), millis(500)),
    ] {
        let before = hosts.lookups();
        hosts.set("a.test", &["192.0.2.1"]);
        key(&per_ip, &get("a.test")).await.unwrap();
        hosts.set("a.test", &["192.0.2.2"]);
        advance(ttl - millis(1)).await;
        assert_eq!(at_once(&per_ip, "a.test"), SlotKey::new("192.0.2.1"));
        advance(millis(1)).await;
        assert_eq!(key(&per_ip, &get("a.test")).await.unwrap(), SlotKey::new("192.0.2.2"));
        assert_eq!(hosts.lookups(), before + 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_kept_more_briefly() {
    let hosts = Hosts::default();
    for (per_ip, ttl) in [
        (PerIp::new(hosts.clone()), Duration::from_secs(5)),
        (PerIp::new(hosts.clone()).failure_ttl(millis(300)), millis(300)),
    ] {
        hosts.set("a.test", &[]);
        let before = hosts.lookups();
        key(&per_ip, &get("a.test")).await.unwrap_err();
        hosts.set("a.test", &["192.0.2.1"]);
        advance(ttl - millis(1)).await;
        key(&per_ip, &get("a.test")).await.unwrap_err();
        assert_eq!(hosts.lookups(), before + 1);
        advance(millis(1)).await;
        assert_eq!(key(&per_ip, &get("a.test")).await.unwrap(), SlotKey::new("192.0.2.1"));
    }
}

// Case 27
#[tokio::test(start_paused = true)]
async fn no_time_is_too_long_to_keep_an_answer() {
    let hosts = Hosts::default();
    hosts.set("a.test", &["192.0.2.1"]);
    let per_ip = PerIp::new(hosts).ttl(Duration::MAX).failure_ttl(Duration::MAX);
    key(&per_ip, &get("a.test")).await.unwrap();
    key(&per_ip, &get("b.test")).await.unwrap_err();
    assert_eq!(at_once(&per_ip, "a.test"), SlotKey::new("192.0.2.1"));
}

// G4
#[tokio::test(start_paused = true)]
async fn the_number_of_names_known_is_bounded_and_those_asked_for_stay() {
    let hosts = Hosts::default();
    hosts.set("a.test", &["192.0.2.1"]);
    let per_ip = PerIp::new(hosts.clone()).max_names(10).unresolved(Unresolved::OwnSlot);
    key(&per_ip, &get("a.test")).await.unwrap();
    for n in 0..100 {
        key(&per_ip, &get(&format!("h{n}.test"))).await.unwrap();
        assert_eq!(at_once(&per_ip, "a.test"), SlotKey::new("192.0.2.1"), "{n}");
    }
    assert_eq!(hosts.lookups(), 101);
    // Those of the last two generations are known, no more than ten with the one above; of the others none.
    let known = (0..100).rev().filter(|n| {
        let before = hosts.lookups();
        let host = get(&format!("h{n}.test"));
        let found = matches!(per_ip.extract(&host), Extracted::Key(_));
        assert_eq!(hosts.lookups(), before);
        found
    });
    let known = known.count();
    assert!((4..=9).contains(&known), "{known}");
}

// --- failures

/// Sends a request to a host that cannot be looked up and returns what becomes of it, with the slot's name.
async fn send<R: Resolve>(per_ip: PerIp<R>, host: &str) -> Result<SlotKey, SlotError> {
    let layer = SlotLayer::new(SlotConfig::default()).key_extractor(per_ip);
    let slots = layer.slots().clone();
    let inner = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let sent = layer.layer(inner).oneshot(get(host)).await;
    match sent {
        Ok(_) => Ok(slots.snapshot().slots[0].key.clone()),
        Err(error) => {
            assert!(slots.is_empty());
            Err(*error.downcast::<SlotError>().unwrap())
        }
    }
}

// S3
#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_looked_up_has_no_key_or_its_own_slot() {
    let hosts = Hosts::default();
    hosts.set("empty.test", &[]);
    for (host, text, why) in [
        ("u:secret@no.test", "host \"no.test\" could not be looked up", Some("no such host")),
        ("u:secret@empty.test", "host \"empty.test\" has no address", None),
    ] {
        let error = send(PerIp::new(hosts.clone()), host).await.unwrap_err();
        assert_eq!(error.kind(), SlotErrorKind::NoKey);
        let source = error.source().unwrap();
        assert_eq!(source.to_string(), text);
        assert_eq!(source.source().map(ToString::to_string).as_deref(), why);
        assert!(source.downcast_ref::<UnresolvedError>().unwrap().host().as_str().ends_with(".test"));
        assert!(!format!("{error} {error:?}").contains("secret"));
        let own = send(PerIp::new(hosts.clone()).unresolved(Unresolved::OwnSlot), host).await.unwrap();
        assert_eq!(own, SlotKey::host(host));
    }
}

// B2
#[tokio::test(start_paused = true)]
async fn a_resolver_that_panics_has_failed_and_is_asked_again_later() {
    struct Panics(AtomicUsize);
    impl Resolve for Panics {
        fn resolve(&self, _: &str) -> Resolving {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("in the call"),
                1 => Box::pin(async { panic!("in the future") }),
                _ => Box::pin(std::future::ready(Ok(vec![IpAddr::from([192, 0, 2, 1])]))),
            }
        }
    }
    let per_ip = PerIp::new(Panics(AtomicUsize::new(0)));
    for _ in 0..2 {
        key(&per_ip, &get("a.test")).await.unwrap_err();
        advance(Duration::from_secs(5)).await;
    }
    assert_eq!(key(&per_ip, &get("a.test")).await.unwrap(), SlotKey::new("192.0.2.1"));
}

// --- the system's

#[tokio::test]
async fn the_systems_resolver_knows_localhost_and_fails_politely() {
    let addresses = SystemResolver.resolve("localhost").await.unwrap();
    assert!(addresses.iter().all(IpAddr::is_loopback) && !addresses.is_empty(), "{addresses:?}");
    // No name has a space; no server has to be asked for that.
    SystemResolver.resolve("no host").await.unwrap_err();
}
