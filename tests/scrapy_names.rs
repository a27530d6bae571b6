//! Scrapy's names of slots, as measured there: by default and per address.

#![cfg(feature = "resolve")]
#![allow(clippy::unwrap_used)]

mod hosts;

use http::Request;
use tower_slot::{ExtensionOrHost, PerIp, SlotKey, Unresolved};

use hosts::{Hosts, key};

/// The request, its slot by default, its slot per address.
const TABLE: [(&str, &str, &str); 9] = [
    ("http://a.com/x", "a.com", "a.com"),
    ("https://a.com:8443/y", "a.com", "a.com"),
    ("http://A.COM/p", "a.com", "a.com"),
    ("http://www.a.com/z", "www.a.com", "www.a.com"),
    ("http://[::1]:8080/", "::1", "::1"),
    ("http://localhost:3000/h", "localhost", "127.0.0.1"),
    ("http://localhost:4000/h", "localhost", "127.0.0.1"),
    ("http://127.0.0.1:3000/h", "127.0.0.1", "127.0.0.1"),
    ("http://127.0.0.1:4000/h", "127.0.0.1", "127.0.0.1"),
];

fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).unwrap()
}

// K1, K2
#[tokio::test(start_paused = true)]
async fn a_request_goes_through_the_slot_that_scrapy_has_for_it() {
    // None of the names resolves, and by policy they keep the host.
    let per_ip = PerIp::new(Hosts::default()).unresolved(Unresolved::OwnSlot);
    for (uri, default, address) in TABLE {
        assert_eq!(key(&ExtensionOrHost, &get(uri)).await.unwrap(), SlotKey::new(default), "{uri}");
        assert_eq!(key(&per_ip, &get(uri)).await.unwrap(), SlotKey::new(address), "{uri} per address");
    }
}

// K1, K3
#[tokio::test(start_paused = true)]
async fn an_explicit_key_comes_first_in_both() {
    let mut request = get("http://a.com/x");
    request.extensions_mut().insert(SlotKey::new("myslot"));
    let hosts = Hosts::default();
    let per_ip = PerIp::new(hosts.clone());
    assert_eq!(key(&ExtensionOrHost, &request).await.unwrap(), SlotKey::new("myslot"));
    assert_eq!(key(&per_ip, &request).await.unwrap(), SlotKey::new("myslot"));
    assert_eq!(hosts.lookups(), 0);
}
