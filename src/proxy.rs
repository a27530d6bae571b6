//! Proxy identities: from a proxy's URL to a key that holds no secret.
//!
//! A budget may belong to the *endpoint* (all accounts share it) or to the *account* (each has its own); which one is
//! for the caller to say. A password takes no part in either, and a user name never stands in a key: an account is
//! told by a label of the caller's, or by a fingerprint under the caller's secret.

use std::fmt;
use std::hash::Hasher;

use http::Uri;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::key::SlotKey;

/// A proxy, as far as budgets are concerned. It forgets the password as it is made.
///
/// ```
/// use tower_slot::ProxyIdentity;
///
/// let proxy = ProxyIdentity::parse("http://scout:secret@Proxy.test:3128")?;
/// assert_eq!(proxy.endpoint().as_str(), "http://proxy.test:3128");
/// assert_eq!(proxy.account("team-a").as_str(), "http://proxy.test:3128#team-a");
/// assert!(!proxy.fingerprint(&[7; 16]).as_str().contains("scout"));
/// # Ok::<(), tower_slot::ProxyUrlError>(())
/// ```
#[derive(Clone)]
pub struct ProxyIdentity {
    endpoint: SlotKey,
    user: Option<Box<[u8]>>,
}

/// What is no proxy's URL. It repeats nothing of it: a secret may stand anywhere in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyUrlError(&'static str);

// === impl ProxyIdentity ===

impl ProxyIdentity {
    /// Reads a proxy's URL: `scheme://[user[:password]@]host[:port]`, and a slash at most behind it.
    ///
    /// # Errors
    ///
    /// What is written otherwise. A `/`, `?` or `#` in a password has to be percent-encoded: bare it would end the
    /// host there, and what stands before it would be taken for one.
    pub fn parse(url: &str) -> Result<Self, ProxyUrlError> {
        let uri = url.parse::<Uri>().map_err(|_| ProxyUrlError("not a URL"))?;
        let scheme = uri.scheme_str().ok_or(ProxyUrlError("no scheme"))?.to_ascii_lowercase();
        let authority = uri.authority().ok_or(ProxyUrlError("no host"))?.as_str();
        // Looked for in the text: what was parsed has forgotten a fragment.
        let behind = url.split_once("://").and_then(|(_, rest)| rest.strip_prefix(authority));
        if !matches!(behind, Some("" | "/")) {
            return Err(ProxyUrlError("something follows the host and port"));
        }
        let (info, host) = match authority.rsplit_once('@') {
            Some((info, host)) => (Some(info), host),
            None => (None, authority),
        };
        let port = match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((_, port)) if !port.is_empty() => {
                Some(port.parse::<u16>().map_err(|_| ProxyUrlError("the port is no port"))?)
            }
            _ => None,
        };
        let host = SlotKey::host(host);
        if host.as_str().is_empty() {
            return Err(ProxyUrlError("no host"));
        }
        let bracketed = host.as_str().contains(':');
        let host = if bracketed { format!("[{host}]") } else { host.to_string() };
        let default = match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            "socks4" | "socks4a" | "socks5" | "socks5h" => Some(1080),
            _ => None,
        };
        let endpoint = match port.or(default) {
            Some(port) => format!("{scheme}://{host}:{port}"),
            None => format!("{scheme}://{host}"),
        };
        let user = info.map(|info| info.split_once(':').map_or(info, |(user, _)| user));
        let user = user.filter(|user| !user.is_empty()).map(percent_decoded);
        Ok(Self { endpoint: endpoint.into(), user })
    }

    /// Returns the key of the endpoint: scheme, host and port. All accounts share it.
    #[must_use]
    pub fn endpoint(&self) -> SlotKey {
        self.endpoint.clone()
    }

    /// Returns a key of the account's own, told by `label`.
    #[must_use]
    pub fn account(&self, label: &str) -> SlotKey {
        format!("{}#{label}", self.endpoint).into()
    }

    /// Returns a key of the account's own, told by 16 hexadecimal digits that follow from the user name and `secret`
    /// (SipHash-2-4): the same in every process with the same secret, and of no use without it. Without a user name
    /// it is the endpoint's.
    #[must_use]
    pub fn fingerprint(&self, secret: &[u8; 16]) -> SlotKey {
        let Some(user) = &self.user else { return self.endpoint() };
        let mut hasher = SipHasher24::new_with_key(secret);
        hasher.write(self.endpoint.as_str().as_bytes());
        // No byte of a URL's host: the two parts cannot run into each other.
        hasher.write(&[0]);
        hasher.write(user);
        self.account(&format!("{:016x}", hasher.finish128().h1))
    }
}

impl fmt::Debug for ProxyIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyIdentity").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Undoes percent-encoding, so that one user written two ways is one account.
fn percent_decoded(text: &str) -> Box<[u8]> {
    let mut rest = text.as_bytes();
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<2>().filter(|_| *first == b'%');
        let byte = digits.and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?));
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    plain.into()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

// === impl ProxyUrlError ===

impl fmt::Display for ProxyUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy URL: {}", self.0)
    }
}

impl std::error::Error for ProxyUrlError {}
