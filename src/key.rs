//! Keys, the byte strings that leases are held on, and the object names that they become.
//!
//! The names are a contract with other tools and with every store: see [`Key::name`].

use crate::{Error, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// The longest key, in bytes.
const MAX_KEY: usize = 1024;

/// The longest name: with the longest suffix that we add it fits the 255 bytes that file systems allow.
const MAX_NAME: usize = 200;

/// Stands between the readable part of a hashed name and the hash. 'h' is no hexadecimal digit, so that no plain name
/// has it.
const HASH_MARK: &str = "!h";

/// Hexadecimal digits of SHA-256.
const HASH_DIGITS: usize = 64;

/// What is left for the readable part of a hashed name.
const MAX_READABLE: usize = MAX_NAME - HASH_MARK.len() - HASH_DIGITS;

/// What a lease is held on: any 1 to 1024 bytes, most often readable text such as `orders/42`.
///
/// Keys are compared byte by byte. `A` and `a`, `a/b` and `a//b`, and the composed and the decomposed form of `é` are
/// different keys. Cheap to clone.
///
/// In JSON a key is a field of the object that it belongs to, so fields of this type are marked `#[serde(flatten)]`;
/// see [`KeyJson`](crate::layout::KeyJson).
///
/// ```
/// use leasehold::Key;
///
/// let key = Key::new("orders/42")?;
/// assert_eq!(key.name(), "orders!2f42");
/// assert!(Key::new("").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "KeyJson", into = "KeyJson")]
pub struct Key(Arc<[u8]>);

impl Key {
    /// A key of these bytes; refused when there are none or more than 1024.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        match bytes.len() {
            0 => Err(Error::invalid("a key must not be empty: 1 to 1024 bytes are allowed")),
            1..=MAX_KEY => Ok(Self(bytes.into())),
            long => Err(Error::invalid(format!("a key of {long} bytes is too long: 1 to 1024 bytes are allowed"))),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The name that stands for this key in the store; no two keys share one.
    ///
    /// The bytes `a` to `z`, `0` to `9`, `-` and `_` stand for themselves, every other one becomes `!` and two
    /// lower-case hexadecimal digits. So a name is one path segment of plain ASCII that all stores and file systems
    /// take, also those that do not tell `A` from `a`, and keys with a common beginning have names with one.
    ///
    /// A name that would be longer than 200 bytes is cut after at most 134 of them, never inside of an escaped byte,
    /// and goes on with `!h` and the 64 hexadecimal digits of the key's SHA-256. The key itself is then known only
    /// from the object's body.
    pub fn name(&self) -> String {
        // Room for a short one in which nothing is escaped but a few.
        let mut name = String::with_capacity((self.0.len() + 16).min(MAX_NAME + 4));
        for &byte in self.0.iter() {
            push_unit(&mut name, byte);
            if name.len() > MAX_NAME {
                return self.hashed_name();
            }
        }
        name
    }

    fn hashed_name(&self) -> String {
        let mut name = Self::name_prefix(&self.0);
        name.push_str(HASH_MARK);
        for byte in Sha256::digest(&self.0) {
            push_hex(&mut name, byte);
        }
        name
    }

    /// What the names of all keys that begin with `prefix` begin with, those of hashed names included.
    ///
    /// Other names may begin with it too, because it ends after at most 134 bytes. A listing by prefix therefore takes the
    /// names that begin with this, and keeps those whose key, decoded from the name or read from the body where the
    /// name is [hashed](Decoded::Hashed), begins with `prefix`. (The prefixes of `object_store`'s listings are whole
    /// segments: this is no such prefix.)
    ///
    /// ```
    /// use leasehold::Key;
    ///
    /// assert_eq!(Key::name_prefix(b"orders/"), "orders!2f");
    /// ```
    pub fn name_prefix(prefix: &[u8]) -> String {
        let mut name = String::new();
        for &byte in prefix {
            let whole = name.len();
            push_unit(&mut name, byte);
            if name.len() > MAX_READABLE {
                name.truncate(whole);
                break;
            }
        }
        name
    }

    /// The key that a name stands for.
    ///
    /// Only what [`name`](Self::name) writes is read: anything else (upper-case digits, a byte that is escaped without
    /// need, a plain name of more than 200 bytes) is refused, so that no key has two names.
    ///
    /// ```
    /// use leasehold::{Key, layout::Decoded};
    ///
    /// assert_eq!(Key::from_name("orders!2f42")?, Decoded::Key(Key::new("orders/42")?));
    /// assert!(Key::from_name("orders!2F42").is_err());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_name(name: &str) -> Result<Decoded> {
        decode(name).ok_or_else(|| Error::invalid(format!("{name:?} is not the name of a key as leasehold writes it")))
    }
}

/// What the name of an object says about its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// All of it.
    Key(Key),
    /// Only how it begins: the key is too long for a name and stands in the object's body.
    Hashed,
}

/// How a key appears in JSON: `{"key": "orders/42"}`, or in standard base64 `{"key_b64": "/w=="}` where it is not UTF-8.
///
/// [`Key`] itself is written and read so; a field of it is marked `#[serde(flatten)]`:
///
/// ```
/// use leasehold::Key;
///
/// #[derive(serde::Serialize)]
/// struct Entry {
///     #[serde(flatten)]
///     key: Key,
///     expires_ms: i64,
/// }
///
/// let entry = Entry { key: Key::new("orders/42")?, expires_ms: 7 };
/// assert_eq!(serde_json::to_string(&entry).unwrap(), r#"{"key":"orders/42","expires_ms":7}"#);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyJson {
    /// The key, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_b64: Option<String>,
}

impl From<Key> for KeyJson {
    fn from(key: Key) -> Self {
        match key.as_str() {
            Some(text) => Self { key: Some(text.to_owned()), key_b64: None },
            None => Self { key: None, key_b64: Some(STANDARD.encode(&key.0)) },
        }
    }
}

impl TryFrom<KeyJson> for Key {
    type Error = Error;

    fn try_from(json: KeyJson) -> Result<Self> {
        match (json.key, json.key_b64) {
            (Some(text), None) => Self::new(text),
            (None, Some(base64)) => match STANDARD.decode(&base64) {
                Ok(bytes) => Self::new(bytes),
                Err(error) => Err(Error::invalid(format!("`key_b64` is not standard base64: {error}"))),
            },
            (None, None) => Err(Error::invalid("there is no key: give `key`, or `key_b64` if it is not UTF-8")),
            (Some(_), Some(_)) => Err(Error::invalid("there are two keys: give either `key` or `key_b64`")),
        }
    }
}

/// Whatever is bytes becomes a key, or an error that says why not.
macro_rules! from_bytes {
    ($($bytes:ty),+) => {$(
        impl TryFrom<$bytes> for Key {
            type Error = Error;

            fn try_from(bytes: $bytes) -> Result<Self> {
                Self::new(bytes)
            }
        }
    )+};
}

from_bytes!(&str, String, &String, &[u8], Vec<u8>, &Vec<u8>);

impl<const N: usize> TryFrom<&[u8; N]> for Key {
    type Error = Error;

    fn try_from(bytes: &[u8; N]) -> Result<Self> {
        Self::new(bytes)
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// As text for people: what is not printable, and what is not UTF-8, is escaped.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for part in chunk.valid().split_inclusive(['"', '\'']) {
                let quote = part.ends_with(['"', '\'']);
                let (plain, quote) = part.split_at(part.len() - usize::from(quote));
                write!(f, "{}{quote}", plain.escape_debug())?;
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')
}

fn push_unit(name: &mut String, byte: u8) {
    if is_plain(byte) {
        name.push(char::from(byte));
    } else {
        name.push('!');
        push_hex(name, byte);
    }
}

fn push_hex(name: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    name.push(char::from(DIGITS[usize::from(byte >> 4)]));
    name.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn decode(name: &str) -> Option<Decoded> {
    if let Some((readable, hash)) = name.rsplit_once(HASH_MARK) {
        decode_plain(readable)?;
        // One byte more of the key, escaped or not, would not have fitted.
        let cut = (MAX_READABLE - 2..=MAX_READABLE).contains(&readable.len());
        let digits = hash.len() == HASH_DIGITS && hash.bytes().all(is_hex);
        return (cut && digits).then_some(Decoded::Hashed);
    }
    if name.len() > MAX_NAME {
        return None;
    }
    Key::new(decode_plain(name)?).ok().map(Decoded::Key)
}

fn decode_plain(name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'!' {
            let (high, low) = (rest.next()?, rest.next()?);
            if !is_hex(high) || !is_hex(low) {
                return None;
            }
            let value = char::from(high).to_digit(16)? * 16 + char::from(low).to_digit(16)?;
            let value = u8::try_from(value).ok()?;
            if is_plain(value) {
                return None;
            }
            bytes.push(value);
        } else if is_plain(byte) {
            bytes.push(byte);
        } else {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;
    use proptest::{collection::vec, prelude::*, sample::select};
    use std::collections::BTreeSet;

    fn key(bytes: impl AsRef<[u8]>) -> Key {
        Key::new(bytes).unwrap()
    }

    /// Any bytes; bytes that the encoding treats in special ways; both also around and over the length of a name.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let tricky = || select(b"aaah!%/.\\-_AZ09f\0\x7f\xff\xc3\xa9".to_vec());
        prop_oneof![
            vec(any::<u8>(), 1..40),
            vec(tricky(), 1..8),
            vec(tricky(), 40..250),
            vec(any::<u8>(), 60..=1024),
            vec(select(b"ab".to_vec()), 130..210),
        ]
    }

    /// What S3, Azure, GCS and ext4 take as one segment of a name, also with our longest suffix.
    fn is_legal(name: &str) -> bool {
        let s3_safe = |c: char| c.is_ascii_alphanumeric() || "!-_.*'()".contains(c);
        !name.is_empty()
            && format!("{name}.pb").len() <= 255
            && name.len() <= 200
            && name != "."
            && name != ".."
            && !name.ends_with('.')
            && name.chars().all(|c| s3_safe(c) && !c.is_ascii_uppercase() && !c.is_control() && c != '/')
    }

    proptest! {
        #[test]
        fn a_key_comes_back_from_its_name_or_the_name_says_that_it_cannot(bytes in bytes()) {
            let key = key(&bytes);
            let name = key.name();
            let escaped = bytes.iter().map(|&byte| if is_plain(byte) { 1 } else { 3 }).sum::<usize>();
            let expected = if escaped <= 200 { Decoded::Key(key) } else { Decoded::Hashed };
            prop_assert_eq!(Key::from_name(&name).unwrap(), expected);
        }

        #[test]
        fn every_name_is_legal_on_every_store_and_is_left_alone_by_object_store(bytes in bytes()) {
            let name = key(&bytes).name();
            prop_assert!(is_legal(&name), "{}", name);
            prop_assert_eq!(Path::from(name.as_str()).to_string(), name.as_str());
            prop_assert_eq!(Path::parse(&name).unwrap().to_string(), name);
        }

        #[test]
        fn no_two_keys_share_a_name(one in bytes(), other in bytes(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut close = one.clone();
            close[at.index(one.len())] = byte;
            let mut names = BTreeSet::new();
            let mut keys = BTreeSet::new();
            let longer = [one.as_slice(), b"a"].concat();
            let as_name = key(&one).name().into_bytes();
            for bytes in [one, other, close, longer, as_name] {
                if let Ok(key) = Key::new(bytes) {
                    names.insert(key.name().to_ascii_uppercase());
                    keys.insert(key);
                }
            }
            prop_assert_eq!(names.len(), keys.len());
        }

        #[test]
        fn a_name_begins_with_the_name_of_every_beginning(bytes in bytes()) {
            let name = key(&bytes).name();
            for end in 0..=bytes.len() {
                prop_assert!(name.starts_with(&Key::name_prefix(&bytes[..end])));
            }
        }

        #[test]
        fn what_is_read_as_a_name_is_what_would_be_written(name in "([a-c.A-F0]|![0-9a-fA-Fh]{2}){0,80}") {
            if let Ok(Decoded::Key(key)) = Key::from_name(&name) {
                prop_assert_eq!(key.name(), name);
            }
        }

        #[test]
        fn a_key_survives_json(bytes in bytes()) {
            let key = key(bytes);
            let json = serde_json::to_string(&key).unwrap();
            prop_assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key);
        }

        #[test]
        fn a_key_prints_without_control_characters(bytes in bytes()) {
            let key = key(bytes);
            let text = format!("{key}{key:?}");
            prop_assert!(!text.contains(char::is_control));
        }
    }

    #[test]
    fn nasty_keys_are_all_different_and_come_back_unchanged() {
        let nasty: &[&[u8]] = &[
            b"../",
            b"..",
            b".",
            b"%2e%2e",
            b"%2E%2E",
            b"!2e!2e",
            b"/etc/passwd",
            b"\0",
            b"a\0",
            b"\x1b[2J",
            b"\x7f",
            b"a\\b",
            b"a/b",
            b"a//b",
            b"/a",
            b"a",
            b"a/",
            b"A",
            b"con",
            b"CON",
            b"nul.txt",
            b"a.",
            b"a ",
            b" a",
            b"~",
            b"a?b#c",
            b"a!h",
            b"!",
            b"!h",
            b"-",
            b"_",
            b"\xff\xfe",
            b"\xed\xa0\x80",
            "caf\u{e9}".as_bytes(),
            "cafe\u{301}".as_bytes(),
            "CAF\u{c9}".as_bytes(),
            "ſ".as_bytes(),
            "ß".as_bytes(),
            "\u{202e}txt.exe".as_bytes(),
            "שלום".as_bytes(),
            "🔒".as_bytes(),
            "👩‍👩‍👧".as_bytes(),
            "\u{feff}".as_bytes(),
        ];
        let mut names = BTreeSet::new();
        for bytes in nasty {
            let name = key(bytes).name();
            assert!(is_legal(&name), "{name}");
            assert_eq!(Key::from_name(&name).unwrap(), Decoded::Key(key(bytes)));
            assert!(names.insert(name.to_ascii_uppercase()), "{name}");
        }
        for bytes in [vec![0xff; 1024], vec![0xff; 1023], vec![0; 1024], vec![b'/'; 1024]] {
            let name = key(bytes).name();
            assert!(is_legal(&name), "{name}");
            assert_eq!(Key::from_name(&name).unwrap(), Decoded::Hashed);
            assert!(names.insert(name.to_ascii_uppercase()), "{name}");
        }
    }

    #[test]
    fn a_key_that_is_empty_or_too_long_is_refused_with_the_limit_named() {
        for (bytes, found) in [(vec![], "empty"), (vec![b'a'; 1025], "1025"), (vec![b'a'; 2048], "2048")] {
            let error = Key::new(bytes).unwrap_err().to_string();
            assert!(error.contains(found) && error.contains("1 to 1024 bytes"), "{error}");
        }
        assert_eq!(key([b'a'; 1024]).as_bytes().len(), 1024);
    }

    #[test]
    fn the_names_are_those_of_the_contract() {
        assert_eq!(key("a-z_09").name(), "a-z_09");
        assert_eq!(key("A.b/%!é").name(), "!41!2eb!2f!25!21!c3!a9");
        assert_eq!(key([b'a'; 200]).name(), "a".repeat(200));
        // SHA-256 as sha256sum(1) gives it.
        let hash = "a92efd82109373e58f9a2056dee01e807e216ce6075f7051207c0a9f7d666e50";
        let name = key([b'a'; 201]).name();
        assert_eq!(name.len(), 200);
        assert_eq!(name, format!("{}!h{hash}", "a".repeat(134)));
        assert_eq!(key([0xff; 67]).name().len(), "!ff".len() * 44 + 66);
    }

    #[test]
    fn a_name_that_we_would_not_write_is_refused() {
        let hash = "0123456789abcdef".repeat(4);
        let a = |count: usize| "a".repeat(count);
        let refused = [
            String::new(),
            "A".into(),
            "a.b".into(),
            "a/b".into(),
            "a%2f".into(),
            "é".into(),
            "!2F".into(),
            "!61".into(),
            "!5f".into(),
            "!".into(),
            "!2".into(),
            "!é".into(),
            "!+f".into(),
            "a!h".into(),
            a(201),
            format!("{}!h{hash}", a(131)),
            format!("{}!h{hash}", a(135)),
            format!("{}!h{}", a(134), &hash[1..]),
            format!("{}!h{}", a(134), hash.to_uppercase()),
            format!("{}!h{hash}", a(134).to_uppercase()),
            format!("{}!61!h{hash}", a(131)),
            format!("{}!h!h{hash}", a(132)),
        ];
        for name in refused {
            assert!(Key::from_name(&name).is_err(), "{name}");
        }
        for cut in 132..=134 {
            assert_eq!(Key::from_name(&format!("{}!h{hash}", a(cut))).unwrap(), Decoded::Hashed);
        }
    }

    #[test]
    fn a_key_is_text_in_json_or_base64_where_it_is_none() {
        assert_eq!(serde_json::to_string(&key("é/1")).unwrap(), r#"{"key":"é/1"}"#);
        assert_eq!(serde_json::to_string(&key([0xff])).unwrap(), r#"{"key_b64":"/w=="}"#);
        let read = |json| serde_json::from_str::<Key>(json);
        assert_eq!(read(r#"{"key_b64":"YQ==","other":1}"#).unwrap(), key("a"));
        let refused =
            ["{}", r#"{"key":""}"#, r#"{"key":"a","key_b64":"YQ=="}"#, r#"{"key_b64":"YQ"}"#, r#"{"key_b64":""}"#];
        for json in refused {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_flattened_key_survives_among_other_fields() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Entry {
            #[serde(flatten)]
            key: Key,
            expires_ms: i64,
        }
        for bytes in [b"orders/42".as_slice(), b"\xff\0"] {
            let entry = Entry { key: key(bytes), expires_ms: 7 };
            let json = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry, "{json}");
        }
    }

    #[test]
    fn a_key_prints_as_its_text_with_the_rest_escaped() {
        assert_eq!(key("o'brien \"é\" नमस्ते").to_string(), "o'brien \"é\" नमस्ते");
        assert_eq!(key(b"a\n\xff\xfe\xe2\x80\xae").to_string(), "a\\n\\xff\\xfe\\u{202e}");
        assert_eq!(format!("{:?}", key("a b")), "\"a b\"");
    }
}
