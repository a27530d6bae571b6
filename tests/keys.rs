//! Keys: which slot a request goes through, what becomes of a host on the way there, and that no key tells a secret.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::Ipv6Addr;

use futures_util::FutureExt;
use http::header::{HOST, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri};
use proptest::collection::vec;
use proptest::prelude::*;
use tower::{Layer, Service, ServiceExt};
use tower_slot::{
    BoxError, ExtensionOrHost, Extracted, KeyExtractor, KeyRef, SlotConfig, SlotErrorKind, SlotKey,
    SlotLayer, Slots,
};

/// A service that answers at once with an empty body.
fn inner() -> impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
+ Clone
+ std::fmt::Debug {
    tower::service_fn(|_: Request<()>| std::future::ready(Ok(Response::new(String::new()))))
}

fn request(method: Method, uri: &str, hosts: &[&[u8]]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(uri).body(()).expect(uri);
    for host in hosts {
        request.headers_mut().append(HOST, HeaderValue::from_bytes(host).unwrap());
    }
    request
}

fn get(uri: &str) -> Request<()> {
    request(Method::GET, uri, &[])
}

/// The default extractor's key, which never takes time.
fn extract<B>(request: &Request<B>) -> KeyRef<'_> {
    match ExtensionOrHost.extract(request) {
        Extracted::Key(key) => key,
        other => panic!("{other:?}"),
    }
}

fn key_of(request: &Request<()>) -> SlotKey {
    extract(request).into_key()
}

/// Sends the request through a service and returns the slots, of which there is one then.
fn send(request: Request<()>) -> Slots {
    let layer = SlotLayer::new(SlotConfig::builder().max_slots(8).build().unwrap());
    let slots = layer.slots().clone();
    layer.layer(inner()).oneshot(request).now_or_never().unwrap().unwrap();
    slots
}

/// The key is the same whether it is extracted, found by a request or looked up by name.
#[track_caller]
fn assert_key(request: &Request<()>, key: &str) {
    assert_eq!(key_of(request).as_str(), key, "extracted from {request:?}");
    let slots = send(request.clone());
    let stats =
        slots.stats(key).unwrap_or_else(|| panic!("{request:?} went to {:?}", slots.snapshot().slots));
    assert_eq!((stats.key.as_str(), stats.counts.finished, slots.len()), (key, 1, 1), "{request:?}");
}

// --- which key

#[test]
fn a_request_goes_through_the_slot_of_its_host() {
    // K1, K2, case 29
    let table = [
        ("http://A.COM/p", "a.com"),
        ("https://u:p@a.com:8443/y", "a.com"),
        ("http://www.a.com/", "www.a.com"),
        ("http://Example.COM./", "example.com"),
        ("http://Example.COM.:80/", "example.com"),
        ("http://u:p@example.com", "example.com"),
        ("http://u:p@w@example.com/", "example.com"),
        ("http://us%65r:p%40ss@example.com/", "example.com"),
        ("http://@example.com/", "example.com"),
        ("http://example.com?q=http://b.com/", "example.com"),
        ("http://example.com#u@b.com", "example.com"),
        ("http://example.com/u@b.com:80", "example.com"),
        ("wss+x://Example.com/", "example.com"),
        ("http://xn--bcher-kva.Example/", "xn--bcher-kva.example"),
        ("http://a_b.test/", "a_b.test"),
        ("http://*.a.com/", "*.a.com"),
        ("http://192.0.2.1:8080/", "192.0.2.1"),
        ("http://192.0.2.1./", "192.0.2.1"),
        // Authority form, and what looks like it.
        ("EXAMPLE.com", "example.com"),
        ("EXAMPLE.com:443", "example.com"),
        ("user:https@proxy:3128", "proxy"),
        ("a", "a"),
        ("mailto:someone@example.com", "example.com"),
        // An empty port, and one that no socket has.
        ("http://a.com:/", "a.com"),
        ("a.com:", "a.com"),
        ("data:", "data"),
        ("http://a.com:99999/", "a.com"),
        // IPv6.
        ("http://[::1]:80/", "::1"),
        ("http://[0:0:0:0:0:0:0:1]/", "::1"),
        ("[::1]:8080", "::1"),
        ("http://u:p@[2001:DB8:0:0:1::A]:1/", "2001:db8::1:0:0:a"),
        ("http://[::FFFF:C000:201]/", "::ffff:192.0.2.1"),
        ("http://[fe80::1%25eth0]:80/", "fe80::1%25eth0"),
        // No host.
        ("/p", ""),
        ("//a.com/p", ""),
        ("*", ""),
        ("http://:80/", ""),
        ("http://u:p@:80/", ""),
        ("http://./", ""),
        ("http://[]/", ""),
    ];
    for (uri, key) in table {
        assert_key(&get(uri), key);
    }
    assert_key(&request(Method::CONNECT, "H:443", &[]), "h");
    assert_key(&request(Method::CONNECT, "[::1]:443", &[]), "::1");
    assert_key(&request(Method::OPTIONS, "*", &[]), "");
}

#[test]
fn brackets_around_what_is_no_address_and_stray_colons_are_no_host() {
    // K1, K2: taken for a host, their ports and brackets would become a part of its name.
    for uri in
        ["http://[v1.x]/", "http://[v1.x:y]/", "http://[a:80]/", "http://[:80]/", "http://foo[::1]:80/"]
    {
        assert_key(&get(uri), "");
    }
}

#[test]
fn an_address_with_a_zone_is_canonical_too() {
    // K2
    for uri in ["http://[fe80::1%25eth0]/", "http://[FE80:0::1%25eth0]:80/", "http://[fe80::0:1%25ETH0]/"] {
        assert_key(&get(uri), "fe80::1%25eth0");
    }
}

#[test]
fn what_has_dots_at_its_end_beyond_the_root_is_no_host() {
    // K2: one dot is dropped; the key of a host would not be the key of its key otherwise.
    assert_key(&get("http://a.com../"), "");
    assert_key(&get("http://../"), "");
    assert_key(&request(Method::GET, "/", &[b"a.com.."]), "");
    assert_eq!(SlotKey::host("a.com..."), SlotKey::new(""));
}

#[test]
fn a_port_that_is_no_number_is_no_port_and_what_stands_before_it_no_host() {
    // K4: an unescaped slash ends the authority within the password, before the host.
    assert_key(&get("http://user:pa/ss@proxy:3128/"), "");
    assert_key(&get("http://user:pa?ss@proxy:3128/"), "");
    assert_eq!(SlotKey::host("zxuser:zxpass").as_str(), "");
    // A URI of a scheme without hosts.
    assert_key(&get("data:,hello"), "");
}

#[test]
fn the_host_header_names_the_slot_of_a_uri_without_a_host() {
    // K1, K2, case 29
    let table = [
        ("/p", "Example.COM.", "example.com"),
        ("/p", "example.com:8080", "example.com"),
        ("/p", "example.com.:", "example.com"),
        ("/p", "192.0.2.1:80", "192.0.2.1"),
        ("/p", "[0:0:0:0:0:0:0:1]:80", "::1"),
        ("/p", "[::1]", "::1"),
        ("/p", "a_b.test", "a_b.test"),
        ("*", "a.com", "a.com"),
        ("http://:80/", "a.com", "a.com"),
        ("http://./", "a.com", "a.com"),
        // The URI comes first.
        ("http://a.com/", "b.com", "a.com"),
        ("a.com:443", "b.com", "a.com"),
    ];
    for (uri, host, key) in table {
        assert_key(&request(Method::GET, uri, &[host.as_bytes()]), key);
    }
}

#[test]
fn two_host_headers_or_one_that_does_not_parse_count_as_none() {
    // K1, K4
    let values: [&[&[u8]]; 19] = [
        &[b"a.com", b"b.com"],
        &[b"a.com", b"a.com"],
        &[b"a.com", b""],
        &[b""],
        &[b"."],
        &[b":80"],
        &[b"a.com:80:80"],
        &[b"a.com:x"],
        &[b"a.com, b.com"],
        &[b"a.com/p"],
        &[b"http://a.com"],
        &[b"a com"],
        &[b"a.com\xff"],
        &["b\u{fc}cher.example".as_bytes()],
        &[b"::1"],
        &[b"[::1"],
        &[b"[a.com]"],
        &[b"[::1]80"],
        &[b"[::1]:x"],
    ];
    for hosts in values {
        assert_key(&request(Method::GET, "/", hosts), "");
    }
    assert_key(&request(Method::GET, "http://a.com/", &[b"a.com", b"b.com"]), "a.com");
}

#[test]
fn a_host_over_253_bytes_counts_as_none() {
    // K2
    let label = |len: usize| format!("{}.{}", "a".repeat(99), "B".repeat(len - 100));
    let (longest, too_long) = (label(253), label(254));
    let lower = longest.to_ascii_lowercase();
    for host in [longest.clone(), format!("{longest}."), format!("u:p@{longest}.:80")] {
        assert_key(&get(&format!("http://{host}/")), &lower);
        assert_eq!(SlotKey::host(&host).as_str(), lower);
    }
    assert_key(&request(Method::GET, "/", &[format!("{longest}.:80").as_bytes()]), &lower);
    for host in [too_long.clone(), format!("{too_long}."), format!("u:p@{too_long}:80"), "a".repeat(60_000)] {
        assert_key(&get(&format!("http://{host}/")), "");
        assert_key(&request(Method::GET, &format!("http://{host}/"), &[b"b.com"]), "b.com");
        assert_eq!(SlotKey::host(&host).as_str(), "");
    }
    assert_key(&request(Method::GET, "/", &[too_long.as_bytes()]), "");
}

#[test]
fn a_host_named_in_code_becomes_what_a_request_to_it_has() {
    // K2
    let table = [
        ("A.com.", "a.com"),
        ("a.com:80", "a.com"),
        ("u:p@A.com.:8443", "a.com"),
        ("user:https@proxy:3128", "proxy"),
        ("[::1]:80", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("[FE80::1%25eth0]", "fe80::1%25eth0"),
        ("", ""),
        (".", ""),
        ("@", ""),
        ("u:p@", ""),
        (":80", ""),
        ("[", ""),
        ("[]", ""),
        ("[::1", ""),
    ];
    for (host, key) in table {
        assert_eq!(SlotKey::host(host).as_str(), key, "{host:?}");
        assert_eq!(KeyRef::host(host).into_key().as_str(), key, "{host:?}");
    }
}

#[test]
fn a_key_in_the_extensions_is_taken_as_it_is() {
    // K1
    let long = "x".repeat(300);
    for name in ["api", "", "A.COM.", "[::1]:80", "*", "two words", "b\u{fc}cher", &long] {
        for mut request in [get("http://b.com/"), request(Method::GET, "/", &[b"b.com"])] {
            request.extensions_mut().insert(SlotKey::new(name));
            assert_key(&request, name);
        }
    }
}

#[test]
fn forwarded_headers_change_nothing() {
    // K1, case 30
    let names = ["x-forwarded-host", "forwarded", "x-forwarded-for", "x-forwarded-server", "x-original-host"];
    let requests = [
        (get("http://a.com/"), "a.com"),
        (request(Method::GET, "/", &[b"a.com"]), "a.com"),
        (request(Method::GET, "/", &[]), ""),
    ];
    for (mut request, key) in requests {
        for name in names {
            let value = if name == "forwarded" { "host=evil.test" } else { "evil.test" };
            request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert_key(&request, key);
    }
}

#[test]
fn requests_without_a_key_share_one_slot_and_its_limits() {
    // K1
    let config = SlotConfig::builder().concurrency(1).queue_capacity(0).build().unwrap();
    let layer = SlotLayer::new(config);
    let _permit = layer.slots().try_acquire(key_of(&get("/"))).unwrap();
    let too_long = format!("http://{}/", "a".repeat(254));
    for request in [get("/"), get("*"), get(&too_long), request(Method::GET, "/", &[b"a.com", b"b.com"])] {
        let error: BoxError = layer.layer(inner()).oneshot(request).now_or_never().unwrap().unwrap_err();
        let error = error.downcast::<tower_slot::SlotError>().unwrap();
        assert_eq!((error.kind(), error.slot().as_str()), (SlotErrorKind::QueueFull, ""));
    }
}

// --- one name space

#[test]
fn explicit_and_host_keys_share_one_name_space() {
    // K3
    let layer = SlotLayer::new(SlotConfig::default());
    let mut by_name = get("http://b.com/");
    by_name.extensions_mut().insert(SlotKey::new("a.com"));
    for request in [get("http://A.com:80/"), by_name, request(Method::GET, "/", &[b"a.com."])] {
        layer.layer(inner()).oneshot(request).now_or_never().unwrap().unwrap();
    }
    drop(layer.slots().try_acquire("a.com").unwrap());
    assert_eq!(layer.slots().stats(KeyRef::host("A.COM.")).unwrap().counts.finished, 4);
    assert_eq!(layer.slots().len(), 1);
}

#[test]
fn names_are_compared_exactly() {
    // K3
    let slots = Slots::new(SlotConfig::default());
    let names = ["a.com", "A.com", "a.com.", "a.com:80", " a.com", "::1", "[::1]", "0:0:0:0:0:0:0:1", ""];
    for name in names {
        drop(slots.try_acquire(name).unwrap());
        assert_eq!(slots.stats(KeyRef::name(name)).unwrap().key.as_str(), name);
    }
    assert_eq!(slots.len(), names.len());
    assert_eq!(slots.stats(KeyRef::host("A.com.")).unwrap().key.as_str(), "a.com");
    assert!(slots.stats(KeyRef::name("A.COM")).is_none());
}

#[test]
fn a_derived_key_is_never_written_into_the_request_and_an_explicit_one_stays() {
    // K3
    let seen = tower::service_fn(|request: Request<()>| {
        let mut response = Response::new(String::new());
        if let Some(key) = request.extensions().get::<SlotKey>() {
            response.headers_mut().insert("seen", key.as_str().parse().unwrap());
        }
        std::future::ready(Ok::<_, BoxError>(response))
    });
    let layer = SlotLayer::new(SlotConfig::default());
    let mut explicit = get("http://a.com/");
    explicit.extensions_mut().insert(SlotKey::new("api"));
    for (request, key) in [(get("http://a.com/"), None), (explicit, Some("api"))] {
        let response = layer.layer(seen).oneshot(request).now_or_never().unwrap().unwrap();
        let seen = response.headers().get("seen").map(|value| value.to_str().unwrap());
        assert_eq!(seen, key);
        assert!(response.extensions().get::<SlotKey>().is_none());
    }
}

// --- secrets

/// Everything that can be printed about a request on its way through a slot: it succeeds, waits, is refused.
fn all_that_is_said_about(request: &Request<()>) -> String {
    let config = SlotConfig::builder().concurrency(1).queue_capacity(0).build().unwrap();
    let layer = SlotLayer::new(config).timings(true);
    let slots = layer.slots().clone();
    let service = layer.layer(inner());
    let key = extract(request);
    let mut said = format!("{key:?} {} {:?}", key_of(request), key_of(request));
    let mut say = |what: &dyn std::fmt::Debug| write!(said, "\n{what:?}").unwrap();

    say(&layer);
    say(&service);
    say(&service.clone().call(request.clone()));
    let response = service.clone().oneshot(request.clone()).now_or_never().unwrap().unwrap();
    say(&response.extensions().get::<tower_slot::SlotTimings>().unwrap());
    say(&response.into_body());

    let permit = slots.try_acquire(key.clone()).unwrap();
    say(&permit);
    say(&slots.acquire(key.clone()));
    let refused = service.clone().oneshot(request.clone()).now_or_never().unwrap().unwrap_err();
    say(&refused);
    say(&refused.to_string());
    say(&slots.try_acquire(key.clone()).unwrap_err().to_string());
    say(&slots.stats(key.clone()).unwrap());
    say(&slots.snapshot());
    say(&slots);
    slots.close();
    let closed = service.oneshot(request.clone()).now_or_never().unwrap().unwrap_err();
    say(&closed);
    say(&closed.to_string());
    assert!(said.contains("queue is full") && said.contains("closed"), "{said}");
    said
}

#[test]
fn nothing_tells_a_user_name_or_password() {
    // K4
    let uris = [
        "http://zxuser:zxpass@a.com/",
        "http://zxuser@a.com:80/",
        "http://:zxpass@a.com/",
        "http://zxuser:https@proxy:3128/",
        "zxuser:https@proxy:3128",
        "http://zx%75ser:zxp%40ss%3A@[::1]:80/",
        "http://zxuser:zx@zx:zx@a.com/",
        "http://[zxuser]:zxpass@a.com/",
        "http://[zxuser:zxpass@a.com]/",
        "http://zxuser:zxpass@:80/",
    ];
    for uri in uris {
        let said = all_that_is_said_about(&get(uri));
        assert!(!said.contains("zx") && !said.contains("https"), "{said}");
    }
}

#[test]
fn a_host_header_with_user_info_counts_as_none() {
    // K1, K4
    let hosts: [&[u8]; 6] = [
        b"zxuser:zxpass@a.com",
        b"zxuser@a.com",
        b"@a.com",
        b"zxuser:https@proxy:3128",
        b"zx%75ser:zxp%40ss@a.com",
        b"zxuser:zxpass@[::1]:80",
    ];
    for host in hosts {
        let request = request(Method::GET, "/", &[host]);
        assert_key(&request, "");
        let said = all_that_is_said_about(&request);
        assert!(!said.contains("zx") && !said.contains("https"), "{said}");
    }
}

#[test]
fn a_host_header_with_an_escape_counts_as_none_as_it_does_in_a_uri() {
    // K1, K4: what is escaped may be user info.
    assert!(Uri::try_from("http://zxuser%3Azxpass%40a.com/").is_err());
    assert_key(&request(Method::GET, "/", &[b"zxuser%3Azxpass%40a.com"]), "");
}

#[test]
fn a_proxy_in_a_form_without_an_at_sign_tells_nothing_either() {
    // K4
    for proxy in ["proxy:3128:zxuser:zxpass", "zxuser:zxpass:proxy:3128", "[zxuser:zxpass]"] {
        assert_eq!(SlotKey::host(proxy).as_str(), "", "{proxy}");
    }
}

// --- properties

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Strings made of what authorities are made of, in any order, and now and then any string.
fn authority() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z0-9]{1,6}",
        2 => prop::sample::select(vec![".", ":", "@", "[", "]", ":80", "..", "%25", "%40", "%", "::", "[::1]"])
            .prop_map(str::to_owned),
        1 => prop::sample::select(vec!["_", "-", "*", ",", "!", "~", "/", "?", "#", "v1.x", "\u{fc}", "\u{130}", " "])
            .prop_map(str::to_owned),
        1 => ipv6().prop_map(|(_, spelled)| spelled),
    ];
    prop_oneof![
        9 => vec(piece, 0..8).prop_map(|pieces| pieces.concat()),
        1 => any::<String>(),
        1 => ("[A-Z.:@\\[\\]]{0,3}", 240..260_usize, "[A-Z.:@\\[\\]]{0,3}")
            .prop_map(|(start, len, end)| format!("{start}{}{end}", "aB".repeat(len / 2))),
    ]
}

/// An IPv6 address: its one form, and any spelling in brackets.
fn ipv6() -> impl Strategy<Value = (String, String)> {
    let group = prop_oneof![Just(0), Just(0xffff), any::<u16>()];
    (vec(group, 8), any::<bool>()).prop_map(|(groups, short)| {
        let address = Ipv6Addr::from(<[u16; 8]>::try_from(groups).unwrap());
        let long = address.segments().map(|group| format!("{group:04x}")).join(":");
        let spelled = if short { address.to_string() } else { long };
        (address.to_string(), format!("[{spelled}]"))
    })
}

/// A host: its key, and how it may be written, case apart.
fn host() -> impl Strategy<Value = (String, String)> {
    let name = "[a-z0-9_-]{1,8}(\\.[a-z0-9_-]{1,8}){0,3}";
    let name = (name, any::<bool>()).prop_map(|(name, root)| {
        let spelled = format!("{name}{}", if root { "." } else { "" });
        (name, spelled)
    });
    prop_oneof![3 => name, 1 => ipv6()]
}

fn in_any_case(text: &str, upper: u64) -> String {
    let letter = |(at, letter): (usize, char)| match upper >> (at % 64) & 1 {
        1 => letter.to_ascii_uppercase(),
        _ => letter,
    };
    text.chars().enumerate().map(letter).collect()
}

/// Whether a key is in the one form that a host has.
fn is_host_key(key: &str) -> bool {
    let is_name = || !key.contains(':') && !key.starts_with('[') && !key.ends_with('.');
    let is_address = || {
        let address = key.split_once('%').map_or(key, |(address, _)| address);
        address.parse::<Ipv6Addr>().is_ok_and(|parsed| parsed.to_string() == address)
    };
    key.is_empty()
        || (key.len() <= 253
            && !key.contains('@')
            && !key.bytes().any(|b| b.is_ascii_uppercase())
            && (is_name() || is_address()))
}

proptest! {
    #![proptest_config(cases(600))]

    /// K2: and [`SlotKey::host`] can be asked twice.
    #[test]
    fn the_key_of_a_key_is_the_key(text in authority()) {
        let key = SlotKey::host(&text);
        prop_assert!(is_host_key(key.as_str()), "{text:?} gives {key:?}");
        prop_assert_eq!(SlotKey::host(key.as_str()), key.clone());
        prop_assert_eq!(SlotKey::host(&text.to_ascii_uppercase()), key);
    }

    /// K2
    #[test]
    fn case_port_scheme_root_dot_and_user_info_make_no_difference(
        (key, spelled) in host(),
        upper in any::<u64>(),
        scheme in prop::option::of("https?|HTTP|[a-z][a-z0-9+.-]{0,8}"),
        user in prop::option::of("([A-Za-z0-9._~!$&'()*+,;=-]|%40|%3A){0,8}(:[A-Za-z0-9._@~-]{0,8})?"),
        port in prop::option::of("[0-9]{0,5}"),
    ) {
        let key = SlotKey::new(key);
        let host = in_any_case(&spelled, upper) + &port.map_or(String::new(), |port| format!(":{port}"));
        let authority = user.map_or(String::new(), |user| user + "@") + &host;
        let uri = scheme.map_or(authority.clone(), |scheme| format!("{scheme}://{authority}/p?q=u:p@x"));
        prop_assert_eq!(key_of(&get(&uri)), key.clone(), "{}", uri);
        prop_assert_eq!(key_of(&request(Method::GET, "/", &[host.as_bytes()])), key.clone(), "Host: {}", host);
        prop_assert_eq!(SlotKey::host(&authority), key, "{}", authority);
    }

    /// K2, K3: a slot is found by a borrowed name as by one of its own.
    #[test]
    fn a_borrowed_host_finds_the_slot_of_its_key(text in authority()) {
        let config = SlotConfig::builder().max_slots(8).build().unwrap();
        let key = SlotKey::host(&text);
        let upper = text.to_ascii_uppercase();
        for borrowed_first in [false, true] {
            let slots = Slots::new(config.clone());
            let first = if borrowed_first { KeyRef::host(&text) } else { KeyRef::from(&key) };
            drop(slots.try_acquire(first).unwrap());
            drop(slots.try_acquire(KeyRef::host(&text)).unwrap());
            drop(slots.try_acquire(KeyRef::host(&upper)).unwrap());
            drop(slots.try_acquire(key.clone()).unwrap());
            let by = [KeyRef::host(&text), KeyRef::host(&upper), KeyRef::name(key.as_str()), (&key).into()];
            for found in by.map(|name| slots.stats(name)) {
                let found = found.map(|stats| (stats.key, stats.counts.finished));
                prop_assert_eq!(found, Some((key.clone(), 4)));
            }
            prop_assert_eq!(slots.len(), 1);
        }
    }

    /// K1, K2: whatever http takes for a URI and a header, nothing panics, and the request is found under its key.
    #[test]
    fn any_request_goes_through_the_slot_of_its_key(
        authority in authority(),
        shape in prop::sample::select(vec!["{}", "http://{}/", "x://{}", "/{}", "http://{}?{}"]),
        hosts in vec(prop_oneof![authority_bytes(), vec(any::<u8>(), 0..12)], 0..3),
    ) {
        let mut request = get("/");
        if let Ok(uri) = Uri::try_from(shape.replace("{}", &authority)) {
            *request.uri_mut() = uri;
        }
        let hosts = hosts.into_iter().filter_map(|host| HeaderValue::from_maybe_shared(bytes::Bytes::from(host)).ok());
        request.headers_mut().extend(hosts.map(|host| (HOST, host)));
        let key = key_of(&request);
        prop_assert!(is_host_key(key.as_str()), "{request:?} gives {key:?}");
        let slots = send(request.clone());
        let found = slots.stats(extract(&request)).map(|stats| (stats.key, stats.counts.finished));
        prop_assert_eq!(found, Some((key, 1)));
        prop_assert_eq!(slots.len(), 1);
    }
}

fn authority_bytes() -> impl Strategy<Value = Vec<u8>> {
    authority().prop_map(String::into_bytes)
}

/// User info in which every piece is marked by `zx`, so that none can be told by chance.
fn secret() -> impl Strategy<Value = String> {
    let piece = ("zx", "[a-z0-9]{0,6}", any::<bool>()).prop_map(|(mark, rest, escaped)| {
        let mut piece = format!("{mark}{rest}");
        if escaped {
            let letters = piece.into_bytes();
            piece = letters.iter().fold("%7Ax".to_owned(), |text, letter| text + &format!("%{letter:02X}"));
        }
        piece
    });
    let between = prop::sample::select(vec![
        ":", "@", "%40", "%3A", "%2F", "[", "]", "[]", "::", ";", "", ":https", ":80",
    ]);
    vec((piece, between), 1..4)
        .prop_map(|pieces| pieces.into_iter().map(|(piece, end)| piece + end).collect())
}

proptest! {
    #![proptest_config(cases(300))]

    /// K4
    #[test]
    fn no_user_info_is_told(
        secret in secret(),
        host in prop::sample::select(vec!["a.com", "A.com.:80", "[::1]:80", "proxy:3128", "b]", "", ":80"]),
        shape in prop::sample::select(vec!["{}", "http://{}/", "http://{}?q", "Host"]),
    ) {
        let authority = format!("{secret}@{host}");
        let mut request = get("/");
        if shape == "Host" {
            request.headers_mut().insert(HOST, authority.parse().unwrap());
        } else if let Ok(uri) = Uri::try_from(shape.replace("{}", &authority)) {
            *request.uri_mut() = uri;
        }
        let said = all_that_is_said_about(&request) + SlotKey::host(&authority).as_str();
        prop_assert!(!said.contains("zx") && !said.contains("%7") && !said.contains('@'), "{authority}: {said}");
        if shape == "Host" {
            prop_assert_eq!(key_of(&request), SlotKey::new(""));
        }
    }
}
