//! JSON objects that carry a checksum of themselves: a flipped bit must not become another time or another answer.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Error, Map, Value, de, ser};

/// CRC-32C of the object without this field, its fields in the order of their names and no spaces in between.
const CHECKSUM: &str = "crc32c";

/// Writes an object down, with its checksum.
pub(crate) fn seal(object: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut fields: Map<String, Value> = serde_json::from_value(serde_json::to_value(object)?)?;
    fields.remove(CHECKSUM);
    let checksum = checksum(&fields)?;
    fields.insert(CHECKSUM.to_owned(), checksum.into());
    ser::to_vec_pretty(&fields)
}

/// Reads an object whose checksum is right. What a later version has added is part of the sum, and stays.
pub(crate) fn unseal<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let mut fields: Map<String, Value> = de::from_slice(body)?;
    let written = fields.remove(CHECKSUM);
    if written != Some(checksum(&fields)?.into()) {
        return Err(serde::de::Error::custom("its checksum is wrong"));
    }
    serde_json::from_value(Value::Object(fields))
}

fn checksum(fields: &Map<String, Value>) -> Result<String, Error> {
    Ok(format!("{:08x}", crc32c::crc32c(&ser::to_vec(fields)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_flipped_bit_goes_unseen() {
        let sealed = seal(&json!({"expires_ms": 1_767_225_600_123_i64, "decision": "commit"})).unwrap();
        let object: Value = unseal(&sealed).unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // A flip of white space changes nothing that is said.
            assert!(unseal::<Value>(&flipped).is_err() || unseal::<Value>(&flipped).unwrap() == object, "bit {bit}");
        }
    }

    #[test]
    fn spaces_order_and_what_others_added_do_not_matter() {
        let sealed = String::from_utf8(seal(&json!({"b": 1, "a": {"later": true}})).unwrap()).unwrap();
        let spaced = sealed.replace('\n', "\n\n");
        assert_eq!(unseal::<Value>(spaced.as_bytes()).unwrap(), json!({"a": {"later": true}, "b": 1}));
        assert!(unseal::<Value>(b"{\"a\":1}").is_err(), "no checksum");
    }
}
