//! What to download: a URL that is fit for a request and for being shown, and where more of them come from.

use std::{
    fmt,
    io::{self, BufRead},
    thread,
};

use http::{Uri, uri::Authority};
use tokio::sync::mpsc;

/// An absolute `http` or `https` URL without user name and password.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    uri: Uri,
}

/// A text that is not a [`Target`].
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// The text, fit for a terminal: without what may be a password, and without control characters.
    pub(crate) shown: String,
    /// Why, as what follows "this URL ..".
    pub(crate) why: &'static str,
}

// === impl Target ===

impl Target {
    /// Parses one URL.
    ///
    /// A user name and a password are dropped: this program does not log in anywhere, and what it prints should hold
    /// no secret.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub(crate) fn parse(text: &str) -> Result<Self, Refused> {
        let refuse = |why| Err(Refused { shown: without_user(text), why });
        let Ok(uri) = text.parse::<Uri>() else {
            return refuse("is not a URL");
        };
        let mut parts = uri.into_parts();
        if !parts.scheme.as_ref().is_some_and(|scheme| ["http", "https"].contains(&scheme.as_str())) {
            return refuse("does not begin with http:// or https://");
        }
        let full = parts.authority.take();
        let place = full.as_ref().and_then(|full| full.as_str().rsplit('@').next()).unwrap_or_default();
        match place.parse::<Authority>() {
            Ok(authority) if !authority.host().is_empty() => parts.authority = Some(authority),
            _ => return refuse("has no host"),
        }
        match Uri::from_parts(parts) {
            Ok(uri) => Ok(Self { uri }),
            Err(_) => refuse("is not a URL"),
        }
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the host, as the URL has it.
    pub(crate) fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }
}

// === impl Refused ===

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" {}", self.shown, self.why)
    }
}

/// Returns `text` without what stands between the scheme and the last `@`.
///
/// It may be more than user name and password; in a text that is not a URL nobody can tell where they end.
fn without_user(text: &str) -> String {
    let (scheme, rest) = text.split_at(text.find("://").map_or(0, |at| at + 3));
    let rest = rest.rsplit_once('@').map_or(rest.to_owned(), |(_, rest)| format!("…@{rest}"));
    format!("{scheme}{rest}").escape_debug().to_string()
}

/// Reads targets from standard input, one a line, until it ends.
///
/// A line that is not a URL comes as the reason why. The reader is a thread of its own, which nobody waits for: input
/// that never ends must not keep the program from ending.
pub(crate) fn from_stdin() -> mpsc::Receiver<Result<Target, Refused>> {
    let (sender, receiver) = mpsc::channel(64);
    thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n') {
            let target = match &line {
                Ok(line) => match String::from_utf8_lossy(line).trim() {
                    "" => continue,
                    comment if comment.starts_with('#') => continue,
                    url => Target::parse(url),
                },
                Err(_) => {
                    Err(Refused { shown: "-".to_owned(), why: "breaks off: standard input cannot be read" })
                }
            };
            // Nobody there: the program is about to end.
            if sender.blocking_send(target).is_err() || line.is_err() {
                return;
            }
        }
    });
    receiver
}
