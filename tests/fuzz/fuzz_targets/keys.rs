//! Keys of arbitrary URIs, `Host` headers and proxy URLs: nothing panics, and a key is its own key.
//!
//! Run with `cargo +nightly fuzz run --fuzz-dir tests/fuzz keys -- -max_total_time=60`. The input is split at its
//! first NUL: a URI, and a `Host` header.

#![no_main]

use http::{HeaderValue, Request, Uri};
use libfuzzer_sys::fuzz_target;
use tower_slot::{
    ExtensionOrHost, Extracted, KeyExtractor, KeyRef, ProxyIdentity, RegistrableDomain, SlotKey,
};

fn key(extractor: &impl KeyExtractor<()>, request: &Request<()>) -> SlotKey {
    match extractor.extract(request) {
        Extracted::Key(key) => key.into_key(),
        other => panic!("{other:?}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |b| *b == 0);
    let (uri, host) = (parts.next().unwrap_or_default(), parts.next());
    let text = String::from_utf8_lossy(uri);

    let own = SlotKey::host(&text);
    assert_eq!(SlotKey::host(own.as_str()), own);
    assert_eq!(KeyRef::host(&text).into_key(), own);
    assert!(own.as_str().len() <= 253);
    let domain = RegistrableDomain::of(&text);
    assert!(own.as_str().ends_with(domain.as_str()));

    if let Ok(proxy) = ProxyIdentity::parse(&text) {
        let endpoint = proxy.endpoint();
        assert_eq!(
            ProxyIdentity::parse(endpoint.as_str()).map(|proxy| proxy.endpoint()),
            Ok(endpoint.clone())
        );
        assert!(!endpoint.as_str().contains('@'));
        let _ = proxy.fingerprint(&[7; 16]);
    }

    let mut request = Request::new(());
    if let Ok(uri) = Uri::try_from(uri) {
        *request.uri_mut() = uri;
    }
    if let Some(host) = host.and_then(|host| HeaderValue::from_bytes(host).ok()) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let found = key(&ExtensionOrHost, &request);
    assert_eq!(SlotKey::host(found.as_str()), found);
    assert!(!found.as_str().contains('@'));
    key(&RegistrableDomain, &request);
});
