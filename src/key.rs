//! Keys: the names of slots.
//!
//! A key is any string and is compared exactly. A *host* key is made from a host name and is written one way
//! only: lower case, no port, no user info, no trailing dot, IPv6 in canonical form and without brackets. Both
//! kinds share one name space, so work can be put into a host's slot by name.
//!
//! ```
//! use tower_slot::SlotKey;
//!
//! assert_eq!(SlotKey::host("A.com.:8443"), SlotKey::new("a.com"));
//! assert_eq!(SlotKey::host("[0:0:0:0:0:0:0:1]:80"), SlotKey::new("::1"));
//! ```

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::future::Future;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::task::{Context, Poll};

use smol_str::SmolStr;

use crate::error::BoxError;

/// The longest host name that counts as one, in bytes (RFC 1035, without the root's dot).
pub(crate) const LONGEST_HOST: usize = 253;

/// The longest zone of an IPv6 address, so that both together are no longer than a host may be.
const LONGEST_ZONE: usize = LONGEST_HOST - 45;

/// The name of a slot; cheap to clone. One of up to 23 bytes, as most hosts have, takes no storage beside it.
///
/// Put into a request's extensions it names the request's slot, whatever the URI says.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey(SmolStr);

/// A key that may still be borrowed from a request: what a [`KeyExtractor`](crate::KeyExtractor) returns.
///
/// A slot that exists is found by it without any allocation.
#[derive(Clone, Debug)]
pub struct KeyRef<'a>(Repr<'a>);

#[derive(Clone, Debug)]
enum Repr<'a> {
    Owned(SlotKey),
    Key(&'a SlotKey),
    Text(&'a str, Form),
}

/// What a text is to be taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Name,
    /// A host in its one form.
    Host,
    /// A host in any form.
    AnyHost,
}

/// Resolves with a key, or with the reason why there is none: the request then fails with
/// [`NoKey`](crate::SlotErrorKind::NoKey).
pub struct KeyFuture(Pin<Box<dyn Future<Output = Result<SlotKey, BoxError>> + Send + Sync>>);

/// A host cut out of a URI or a header: no user info, brackets, port or trailing dot, but not yet in one case.
#[derive(Clone, Copy)]
pub(crate) struct Host<'a> {
    name: &'a str,
    /// Whether it is in its one form already.
    is_canonical: bool,
}

// === impl SlotKey ===

impl SlotKey {
    /// Creates a key that is exactly `name`.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(SmolStr::new(name))
    }

    /// Creates the key that a request to `host` has by default.
    ///
    /// Takes what may stand in a URI's authority: `a.com`, `A.com.`, `u:p@a.com:8443`, `[::1]:80`. What is no
    /// host (empty, or over 253 bytes) gives the key of requests without one, `""`.
    #[must_use]
    pub fn host(host: &str) -> Self {
        KeyRef::host(host).into_key()
    }

    /// Returns the name.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SlotKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for SlotKey {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<&SlotKey> for SlotKey {
    fn from(key: &SlotKey) -> Self {
        key.clone()
    }
}

impl Borrow<str> for SlotKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for SlotKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

// === impl KeyRef ===

impl<'a> KeyRef<'a> {
    /// The key that is exactly `name`.
    #[must_use]
    pub const fn name(name: &'a str) -> Self {
        Self(Repr::Text(name, Form::Name))
    }

    /// The key of a host, as [`SlotKey::host`] makes it.
    #[must_use]
    pub fn host(host: &'a str) -> Self {
        Host::in_authority(host).map_or(Self::name(""), Self::from)
    }

    /// Turns it into a key of its own.
    #[must_use]
    pub fn into_key(self) -> SlotKey {
        match self.0 {
            Repr::Owned(key) => key,
            Repr::Key(key) => key.clone(),
            Repr::Text(name, Form::Name | Form::Host) => SlotKey::from(name),
            Repr::Text(name, Form::AnyHost) => SlotKey::new(canonical(name)),
        }
    }

    /// Calls `f` with the bytes of the name in the one form in which they are compared.
    #[inline]
    pub(crate) fn with_bytes<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        match &self.0 {
            Repr::Text(name, Form::Name | Form::Host) => f(name.as_bytes()),
            Repr::Owned(key) => f(key.as_str().as_bytes()),
            Repr::Key(key) => f(key.as_str().as_bytes()),
            Repr::Text(name, Form::AnyHost) => with_canonical_bytes(name, f),
        }
    }
}

impl KeyRef<'_> {
    /// Whether it was made from a host, and not given.
    #[inline]
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.0, Repr::Text(_, Form::Host | Form::AnyHost))
    }
}

impl From<SlotKey> for KeyRef<'_> {
    fn from(key: SlotKey) -> Self {
        Self(Repr::Owned(key))
    }
}

impl<'a> From<&'a SlotKey> for KeyRef<'a> {
    fn from(key: &'a SlotKey) -> Self {
        Self(Repr::Key(key))
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::name(name)
    }
}

impl From<String> for KeyRef<'_> {
    fn from(name: String) -> Self {
        SlotKey::from(name).into()
    }
}

impl<'a> From<Host<'a>> for KeyRef<'a> {
    fn from(host: Host<'a>) -> Self {
        Self(Repr::Text(host.name, if host.is_canonical { Form::Host } else { Form::AnyHost }))
    }
}

// === impl KeyFuture ===

impl KeyFuture {
    /// Creates one from a future.
    pub fn new(future: impl Future<Output = Result<SlotKey, BoxError>> + Send + Sync + 'static) -> Self {
        Self(Box::pin(future))
    }
}

impl Future for KeyFuture {
    type Output = Result<SlotKey, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for KeyFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFuture").finish_non_exhaustive()
    }
}

// === impl Host ===

impl<'a> Host<'a> {
    /// Cuts the host out of `[userinfo@]host[:port]`; `None` where there is none.
    #[inline]
    pub(crate) fn in_authority(authority: &'a str) -> Option<Self> {
        // Most are nothing but a name in lower case.
        if is_plain(authority.as_bytes()) && !authority.ends_with('.') {
            let is_name = !authority.is_empty() && authority.len() <= LONGEST_HOST;
            return is_name.then_some(Self { name: authority, is_canonical: true });
        }
        Self::cut_out(authority)
    }

    fn cut_out(authority: &'a str) -> Option<Self> {
        let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        match host.strip_prefix('[') {
            Some(literal) => Self::address(literal.split_once(']')?.0),
            None => match host.split_once(':') {
                // More than one colon and no brackets: an address written bare, without a port.
                Some((_, rest)) if rest.contains(':') => Self::address(host),
                // What is no port follows no host: an unescaped slash ends `user:pa/ss@host` within the password.
                Some((name, port)) => is_port(port).then(|| Self::name(name))?,
                None => Self::name(host),
            },
        }
    }

    /// Cuts the host out of a `Host` header; `None` where the value is none that RFC 9110 allows there, or has an
    /// escape, which no URI may have in its host.
    pub(crate) fn in_header(value: &'a [u8]) -> Option<Self> {
        let value = std::str::from_utf8(value).ok()?;
        let (host, port) = match value.strip_prefix('[') {
            Some(literal) => {
                let (literal, rest) = literal.split_once(']')?;
                literal.parse::<Ipv6Addr>().ok()?;
                (literal, if rest.is_empty() { "" } else { rest.strip_prefix(':')? })
            }
            None => value.split_once(':').unwrap_or((value, "")),
        };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:".contains(&b);
        (is_port(port) && host.bytes().all(is_name)).then(|| Self::name(host))?
    }

    /// A name, or an IPv4 address. Of two dots at its end one would be left, and be taken for the root's later on.
    fn name(name: &'a str) -> Option<Self> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_name = !name.is_empty() && !name.ends_with('.') && name.len() <= LONGEST_HOST;
        is_name.then(|| Self { name, is_canonical: is_plain(name.as_bytes()) })
    }

    /// An IPv6 address, with the zone it may have.
    fn address(literal: &'a str) -> Option<Self> {
        let (address, zone) = split_zone(literal);
        let is_address = address.parse::<Ipv6Addr>().is_ok() && zone.len() <= LONGEST_ZONE;
        is_address.then_some(Self { name: literal, is_canonical: false })
    }

    /// The host in its one form.
    pub(crate) fn canonical(self) -> Cow<'a, str> {
        match self.is_canonical {
            true => Cow::Borrowed(self.name),
            false => Cow::Owned(canonical(self.name)),
        }
    }
}

/// The one form of a host that was cut out.
fn canonical(host: &str) -> String {
    let (address, zone) = split_zone(host);
    match address.parse::<Ipv6Addr>() {
        Ok(address) => format!("{address}{}", zone.to_ascii_lowercase()),
        Err(_) => host.to_ascii_lowercase(),
    }
}

/// The same as bytes and without allocating, but for an IPv6 address.
#[inline(never)]
fn with_canonical_bytes<T>(host: &str, f: impl FnOnce(&[u8]) -> T) -> T {
    if host.contains(':') {
        return f(canonical(host).as_bytes());
    }
    let mut lower = [0; LONGEST_HOST];
    let lower = &mut lower[..host.len()];
    lower.copy_from_slice(host.as_bytes());
    lower.make_ascii_lowercase();
    f(lower)
}

/// Whether all bytes are ASCII and none lies between `:` and `[`: that leaves out capitals, `@` and both signs that
/// begin a port or an address.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = 0x80 * ONES;
    // Eight at a time. For a byte below 0x80 no sum carries into the next one, and a carry out of any other comes
    // with that byte's own high bit.
    let odd = |eight: u64| {
        let from_colon = eight.wrapping_add((0x80 - b':' as u64) * ONES);
        let above_bracket = eight.wrapping_add((0x80 - b'[' as u64 - 1) * ONES);
        (eight | (from_colon & !above_bracket)) & HIGH
    };
    let read = |eight: &[u8; 8]| odd(u64::from_le_bytes(*eight));
    match bytes.last_chunk() {
        // The last eight may have been looked at in part already, which does no harm.
        Some(last) => {
            let eights = bytes.chunks_exact(8).filter_map(|eight| eight.first_chunk());
            eights.fold(read(last), |any, eight| any | read(eight)) == 0
        }
        None => !bytes.iter().any(|b| *b >= 0x80 || (b':'..=b'[').contains(b)),
    }
}

/// Whether `name` is a host in its one form, could stand in a URI, and has no label that is empty.
pub(crate) fn is_host(name: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()+,;=:%".contains(&b);
    let is_address = name.contains(':');
    (is_address || !name.contains('%'))
        && !name.split('.').any(str::is_empty)
        && name.bytes().all(may_stand)
        && Host::in_authority(name).is_some_and(|host| host.canonical() == name)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// Splits `fe80::1%25eth0`; the zone begins with its percent sign.
fn split_zone(literal: &str) -> (&str, &str) {
    literal.split_at(literal.find('%').unwrap_or(literal.len()))
}

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.name, f)
    }
}
