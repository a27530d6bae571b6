//! Key extractors: which slot a request belongs to.
//!
//! The default reads nothing that a stranger can set beyond the request's own target: never `Forwarded`, never
//! `X-Forwarded-*`.

use http::{Request, header};

use crate::key::{Host, KeyRef, SlotKey};

/// Says which slot a request goes through.
///
/// Closures from a request to a [`SlotKey`] are extractors:
///
/// ```
/// # use tower_slot::{SlotConfig, SlotKey, SlotLayer};
/// let per_method = SlotLayer::new(SlotConfig::default())
///     .key_extractor(|request: &http::Request<()>| SlotKey::from(request.method().as_str()));
/// ```
pub trait KeyExtractor<B> {
    /// Returns the key of `request`.
    fn extract<'a>(&self, request: &'a Request<B>) -> KeyRef<'a>;
}

/// The default: the [`SlotKey`] in the request's extensions, else the URI's host, else the `Host` header.
///
/// A request with none of them goes through the slot named `""`: it is limited like any other. Two `Host`
/// headers, or one that RFC 9110 does not allow, count as none. See [`SlotKey::host`] for what a host becomes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtensionOrHost;

// === impl ExtensionOrHost ===

impl<B> KeyExtractor<B> for ExtensionOrHost {
    fn extract<'a>(&self, request: &'a Request<B>) -> KeyRef<'a> {
        if let Some(key) = request.extensions().get::<SlotKey>() {
            return KeyRef::from(key);
        }
        host(request).map_or(KeyRef::name(""), KeyRef::from)
    }
}

impl<B, F> KeyExtractor<B> for F
where
    F: Fn(&Request<B>) -> SlotKey,
{
    fn extract<'a>(&self, request: &'a Request<B>) -> KeyRef<'a> {
        KeyRef::from(self(request))
    }
}

fn host<B>(request: &Request<B>) -> Option<Host<'_>> {
    let authority = request.uri().authority();
    authority.and_then(|authority| Host::in_authority(authority.as_str())).or_else(|| {
        let mut values = request.headers().get_all(header::HOST).iter();
        let value = values.next()?;
        values.next().is_none().then(|| Host::in_header(value.as_bytes()))?
    })
}
