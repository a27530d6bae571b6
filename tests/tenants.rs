//! Tenants on a server: slots per header, per peer, per forwarded address.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;

use http::header::{HeaderName, HeaderValue};
use http::{Request, Response};
use tower::{Layer, ServiceExt};
use tower_slot::{
    Extracted, ForwardedFor, HeaderKey, KeyExtractor, PeerKey, SlotConfig, SlotError, SlotErrorKind, SlotKey,
    SlotLayer,
};

const TENANT: HeaderName = HeaderName::from_static("x-tenant");

type Headers<'a> = &'a [(&'static str, &'a [u8])];

fn request(headers: Headers<'_>) -> Request<()> {
    let mut request = Request::get("http://a.test/").body(()).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
    }
    request
}

#[track_caller]
fn key(extractor: &impl KeyExtractor<()>, request: &Request<()>) -> SlotKey {
    match extractor.extract(request) {
        Extracted::Key(key) => key.into_key(),
        other => panic!("{other:?}"),
    }
}

// K1
#[test]
fn a_header_names_the_tenant_if_there_is_one_that_can_be_read() {
    let long = "x".repeat(254);
    let table: [(Headers<'_>, &str); 7] = [
        (&[("x-tenant", b"Acme")], "Acme"),
        (&[("x-other", b"Acme")], ""),
        (&[("x-tenant", b"a"), ("x-tenant", b"b")], ""),
        (&[("x-tenant", b"a"), ("x-tenant", b"a")], ""),
        (&[("x-tenant", b"\xff")], ""),
        (&[("x-tenant", long.as_bytes())], ""),
        (&[("x-tenant", &long.as_bytes()[1..])], &long[1..]),
    ];
    for (headers, expected) in table {
        assert_eq!(key(&HeaderKey::new(TENANT), &request(headers)), SlotKey::new(expected), "{headers:?}");
    }
}

#[derive(Clone)]
struct Peer(SocketAddr);

// K2
#[test]
fn a_peer_is_its_address_and_of_ipv6_a_prefix() {
    let table = [
        ("192.0.2.1:1", None, "192.0.2.1"),
        ("192.0.2.1:2", Some(0), "192.0.2.1"),
        ("[::ffff:192.0.2.1]:1", None, "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:1", None, "2001:db8:1:2::"),
        ("[2001:db8:1:2ff:3:4:5:6]:1", Some(56), "2001:db8:1:200::"),
        ("[2001:db8::6]:1", Some(128), "2001:db8::6"),
        ("[2001:db8::6]:1", Some(255), "2001:db8::6"),
        ("[2001:db8::6]:1", Some(127), "2001:db8::6"),
        ("[2001:db8::7]:1", Some(127), "2001:db8::6"),
        ("[2001:db8::7]:1", Some(0), "::"),
    ];
    for (address, prefix, expected) in table {
        let mut peer = PeerKey::new(|peer: &Peer| peer.0);
        if let Some(bits) = prefix {
            peer = peer.ipv6_prefix(bits);
        }
        let mut request = request(&[("x-forwarded-for", b"203.0.113.9")]);
        request.extensions_mut().insert(Peer(address.parse().unwrap()));
        assert_eq!(key(&peer, &request), SlotKey::new(expected), "{address} {prefix:?}");
    }
    assert_eq!(key(&PeerKey::new(|peer: &Peer| peer.0), &request(&[])), SlotKey::new(""), "unknown");
}

// K1, case 30
#[test]
fn a_forwarded_address_is_counted_from_the_right() {
    let one: &[&[u8]] = &[b"198.51.100.1, 203.0.113.2,192.0.2.3:80"];
    let two: &[&[u8]] = &[b"198.51.100.1,203.0.113.2", b" [2001:db8:1:2:3::4]:443 "];
    let odd: &[&[u8]] = &[b"unknown, , \xff, [2001:db8::1]"];
    let table: [(&[&[u8]], usize, &str); 14] = [
        (one, 0, "192.0.2.3"),
        (one, 1, "192.0.2.3"),
        (one, 2, "203.0.113.2"),
        (one, 3, "198.51.100.1"),
        (one, 4, ""),
        (one, usize::MAX, ""),
        (two, 1, "2001:db8:1:2::"),
        (two, 2, "203.0.113.2"),
        (two, 3, "198.51.100.1"),
        (odd, 1, "2001:db8::"),
        (odd, 2, ""),
        (odd, 3, ""),
        (odd, 4, ""),
        (&[], 1, ""),
    ];
    for (headers, n, expected) in table {
        let headers: Vec<_> = headers.iter().map(|value| ("x-forwarded-for", *value)).collect();
        assert_eq!(
            key(&ForwardedFor::from_right(n), &request(&headers)),
            SlotKey::new(expected),
            "{headers:?} {n}"
        );
    }
}

// A client adds elements on the left only.
#[test]
fn what_a_client_writes_changes_nothing_to_the_right_of_it() {
    let honest = request(&[("x-forwarded-for", b"203.0.113.2, 192.0.2.3")]);
    let spoofed =
        request(&[("x-forwarded-for", b"1.1.1.1"), ("x-forwarded-for", b"2.2.2.2, 203.0.113.2, 192.0.2.3")]);
    for n in 1..=2 {
        assert_eq!(key(&ForwardedFor::from_right(n), &honest), key(&ForwardedFor::from_right(n), &spoofed));
    }
}

// G4
#[tokio::test(start_paused = true)]
async fn strangers_make_ten_thousand_slots_on_a_server_at_most() {
    let config = SlotConfig::server().delay(std::time::Duration::from_secs(900)).build().unwrap();
    let layer = SlotLayer::new(config).key_extractor(HeaderKey::new(TENANT));
    let slots = layer.slots().clone();
    let inner = tower::service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    });
    let service = layer.layer(inner);
    for n in 0..10_001 {
        let sent = service.clone().oneshot(request(&[("x-tenant", n.to_string().as_bytes())])).await;
        assert_eq!(sent.is_ok(), n < 10_000, "{n}");
        if let Err(error) = sent {
            assert_eq!(error.downcast::<SlotError>().unwrap().kind(), SlotErrorKind::TooManySlots);
        }
    }
    assert_eq!(slots.len(), 10_000);
}
