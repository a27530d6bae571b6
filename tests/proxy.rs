//! Keys of proxies: stable, and no secret in any output.

#![cfg(feature = "proxy")]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tower_slot::{ProxyIdentity, ProxyUrlError};

const SECRET: [u8; 16] = *b"0123456789abcdef";

fn parse(url: &str) -> Result<ProxyIdentity, ProxyUrlError> {
    ProxyIdentity::parse(url)
}

/// All that is said of a proxy.
fn said(url: &str) -> String {
    match parse(url) {
        Ok(proxy) => {
            let keys = [proxy.endpoint(), proxy.account("team"), proxy.fingerprint(&SECRET)];
            format!("{proxy:?} {keys:?} {} {} {}", keys[0], keys[1], keys[2])
        }
        Err(error) => format!("{error} {error:?}"),
    }
}

#[test]
fn an_endpoint_is_scheme_host_and_port() {
    let table = [
        ("http://proxy.test:3128", "http://proxy.test:3128"),
        ("http://user:pass@Proxy.Test.:3128/", "http://proxy.test:3128"),
        ("HTTP://proxy.test", "http://proxy.test:80"),
        ("http://proxy.test:", "http://proxy.test:80"),
        ("https://proxy.test", "https://proxy.test:443"),
        ("socks5h://user@proxy.test", "socks5h://proxy.test:1080"),
        ("other://proxy.test", "other://proxy.test"),
        ("http://[2001:DB8:0::1]", "http://[2001:db8::1]:80"),
        ("http://u:p@[::1]:3128", "http://[::1]:3128"),
        ("https://user:https@proxy:3128", "https://proxy:3128"),
        ("http://user:p@ss@proxy.test:3128", "http://proxy.test:3128"),
    ];
    for (url, endpoint) in table {
        assert_eq!(parse(url).unwrap().endpoint().as_str(), endpoint, "{url}");
    }
}

// K4
#[test]
fn what_is_no_proxys_url_is_refused_without_a_word_of_it() {
    let table = [
        ("", "not a URL"),
        ("proxy.test", "no scheme"),
        ("proxy.test:3128", "no scheme"),
        ("user:hunter2@proxy.test:3128", "no scheme"),
        ("http://user:hunter2@", "no host"),
        ("http://user:hunter2@:3128", "no host"),
        ("http://user:hunter2@proxy.test:99999", "the port is no port"),
        ("http://user:hunter2@proxy.test/path", "something follows the host and port"),
        ("http://proxy.test/?hunter2", "something follows the host and port"),
        ("http://proxy.test#hunter2", "something follows the host and port"),
        // Bare signs in a password: what stands before them must not be taken for a host.
        ("http://hunter2:12/34@proxy.test:3128", "something follows the host and port"),
        ("http://hunter2:12?34@proxy.test:3128", "something follows the host and port"),
        ("http://hunter2:12#34@proxy.test:3128", "something follows the host and port"),
        ("http://hunter2#@proxy.test:3128", "something follows the host and port"),
        ("http://hunter2/@proxy.test:3128", "something follows the host and port"),
    ];
    for (url, problem) in table {
        let why = match parse(url) {
            Ok(proxy) => format!("{proxy:?}"),
            Err(error) => error.to_string(),
        };
        // Some have no authority that can be read at all.
        let known = [format!("proxy URL: {problem}"), "proxy URL: not a URL".to_owned()];
        assert!(known.contains(&why), "{url}: {why}");
        assert!(!said(url).contains("hunter2"), "{url}");
    }
}

#[test]
fn an_account_is_told_by_its_label_or_fingerprint() {
    let fingerprint = |url: &str| parse(url).unwrap().fingerprint(&SECRET);
    let scout = fingerprint("http://scout:one@proxy.test:3128");
    // The same in every process: SipHash-2-4, first half of 128 bits.
    assert_eq!(scout.as_str().len(), "http://proxy.test:3128#".len() + 16);
    assert_eq!(scout, fingerprint("http://scout:two@PROXY.test:3128/"), "the password takes no part");
    assert_eq!(scout, fingerprint("http://sc%6Fut@proxy.test:3128"), "escapes are undone");
    for other in [
        "http://scout2:one@proxy.test:3128",
        "http://scout:one@proxy.test:3129",
        "https://scout:one@proxy.test:3128",
        "http://sc%6fut%00@proxy.test:3128",
        "http://sc%+fut@proxy.test:3128",
    ] {
        assert_ne!(scout, fingerprint(other), "{other}");
    }
    // "%+1" is no escape.
    assert_ne!(fingerprint("http://a%+1@proxy.test"), fingerprint("http://a%01@proxy.test"));
    let proxy = parse("http://scout:one@proxy.test:3128").unwrap();
    assert_ne!(scout, proxy.fingerprint(&[0; 16]), "another secret, another fingerprint");
    assert_eq!(proxy.account("a").as_str(), "http://proxy.test:3128#a");
    for nobody in ["http://proxy.test", "http://@proxy.test", "http://:pass@proxy.test"] {
        assert_eq!(fingerprint(nobody).as_str(), "http://proxy.test:80", "{nobody}");
    }
}

/// Something that is in no part of what is said without it.
fn secret() -> impl Strategy<Value = String> {
    // Q and Z stand in no other word, and hexadecimal digits have neither.
    "Q[!-~]{0,12}Z"
}

proptest! {
    // K4
    #[test]
    fn no_output_holds_a_secret_that_was_given_in(
        user in secret(),
        password in secret(),
        tail in prop_oneof![Just(""), Just("/"), Just(":3128"), Just(":3128/"), Just("/x?y#z")],
        escaped in any::<bool>(),
    ) {
        let write = |text: &str| match escaped {
            true => text.bytes().map(|b| format!("%{b:02X}")).collect::<String>(),
            false => text.to_owned(),
        };
        let url = format!("https://{}:{}@proxy.test{tail}", write(&user), write(&password));
        let said = said(&url).to_ascii_lowercase();
        for secret in [&user, &password] {
            for part in [secret.clone(), write(secret), write(&write(secret))] {
                prop_assert!(!said.contains(&part.to_ascii_lowercase()), "{} in {}", part, said);
            }
            // Nor its beginning: a sign in it may have ended the host.
            prop_assert!(!said.contains('q') , "{}", said);
        }
    }

    // K4
    #[test]
    fn nothing_panics_and_an_endpoint_is_its_own(url in "[ -~]{0,40}", scheme in any::<bool>()) {
        let url = if scheme { format!("http://{url}") } else { url };
        if let Ok(proxy) = parse(&url) {
            let endpoint = proxy.endpoint();
            prop_assert_eq!(parse(endpoint.as_str()).unwrap().endpoint(), endpoint);
        }
    }
}
