//! Slots per registrable domain.

#![cfg(feature = "domain")]
#![allow(clippy::unwrap_used, clippy::panic)]

use http::Request;
use proptest::prelude::*;
use tower_slot::{Extracted, KeyExtractor, RegistrableDomain, SlotKey};

fn key(uri: &str, host: Option<&str>) -> SlotKey {
    let mut request = Request::get(uri);
    if let Some(host) = host {
        request = request.header("host", host);
    }
    match RegistrableDomain.extract(&request.body(()).unwrap()) {
        Extracted::Key(key) => key.into_key(),
        other => panic!("{other:?}"),
    }
}

// K2
#[test]
fn hosts_under_one_registrable_domain_share_a_slot() {
    let table = [
        ("a.example.co.uk", "example.co.uk"),
        ("b.example.co.uk", "example.co.uk"),
        ("example.co.uk", "example.co.uk"),
        ("B.A.Example.CO.UK.", "example.co.uk"),
        ("www.example.com", "example.com"),
        ("one.github.io", "one.github.io"),
        ("x.one.github.io", "one.github.io"),
        ("a.b.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
        // These stand alone.
        ("co.uk", "co.uk"),
        ("com", "com"),
        ("github.io", "github.io"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("10.1", "10.1"),
        ("1.2.3", "1.2.3"),
        ("1.2.3.4.5", "1.2.3.4.5"),
        ("[::1]", "::1"),
        ("[2001:DB8:0::1]", "2001:db8::1"),
        ("[fe80::1%25a.example.com]", "fe80::1%25a.example.com"),
    ];
    for (host, expected) in table {
        assert_eq!(RegistrableDomain::of(host), SlotKey::new(expected), "{host}");
        if !host.contains('%') {
            assert_eq!(key(&format!("https://u:p@{host}:8443/"), None), SlotKey::new(expected), "{host}");
            assert_eq!(key("/p", Some(host)), SlotKey::new(expected), "{host} in the header");
        }
    }
    assert_eq!(key("/p", None), SlotKey::new(""));
}

// K1, K3
#[test]
fn an_explicit_key_is_taken_as_it_is() {
    let mut request = Request::get("http://a.example.com/").body(()).unwrap();
    request.extensions_mut().insert(SlotKey::new("b.example.com"));
    let Extracted::Key(key) = RegistrableDomain.extract(&request) else { panic!() };
    assert_eq!(key.into_key(), SlotKey::new("b.example.com"));
}

proptest! {
    // K2
    #[test]
    fn a_domain_is_an_end_of_the_host_and_its_own_domain(host in "[A-Za-z0-9.:%@-]{0,40}") {
        let (domain, whole) = (RegistrableDomain::of(&host), SlotKey::host(&host));
        prop_assert!(whole.as_str().ends_with(domain.as_str()));
        prop_assert_eq!(RegistrableDomain::of(domain.as_str()), domain);
    }
}
