//! Slots per registrable domain, by the public suffix list.

use std::borrow::Cow;

use http::Request;

use crate::extract::{Extracted, KeyExtractor, host};
use crate::key::{KeyRef, SlotKey};

/// A slot per registrable domain: `a.example.co.uk` and `b.example.co.uk` share `example.co.uk`.
///
/// An address, `localhost` and a bare public suffix stand alone. The rest is as with
/// [`ExtensionOrHost`](crate::ExtensionOrHost): a [`SlotKey`] in the extensions comes first.
///
/// ```
/// # use tower_slot::{RegistrableDomain, SlotConfig, SlotLayer};
/// let layer = SlotLayer::new(SlotConfig::default()).key_extractor(RegistrableDomain);
/// assert_eq!(RegistrableDomain::of("a.Example.co.uk."), "example.co.uk".into());
/// assert_eq!(RegistrableDomain::of("127.0.0.1"), "127.0.0.1".into());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RegistrableDomain;

// === impl RegistrableDomain ===

impl RegistrableDomain {
    /// Returns the key of a host's registrable domain.
    #[must_use]
    pub fn of(host: &str) -> SlotKey {
        SlotKey::from(domain(SlotKey::host(host).as_str()))
    }
}

impl<B> KeyExtractor<B> for RegistrableDomain {
    fn extract<'a>(&self, request: &'a Request<B>) -> Extracted<'a> {
        if let Some(key) = request.extensions().get::<SlotKey>() {
            return Extracted::Key(key.into());
        }
        match host(request).map(|host| host.canonical()) {
            Some(Cow::Borrowed(host)) => KeyRef::name(domain(host)).into(),
            Some(Cow::Owned(host)) => SlotKey::from(domain(&host)).into(),
            None => KeyRef::name("").into(),
        }
    }
}

/// The registrable part of a host in its one form; all of it where there is none.
fn domain(host: &str) -> &str {
    // What ends in a number is an address, whatever it looks like: no suffix does. So is what has a colon, and its
    // zone may look like a name.
    let last = host.rsplit('.').next().unwrap_or_default();
    if host.contains(':') || last.bytes().all(|b| b.is_ascii_digit()) {
        return host;
    }
    psl::domain_str(host).unwrap_or(host)
}
