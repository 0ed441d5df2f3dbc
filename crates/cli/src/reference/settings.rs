//! Every key of `forebay.toml`, as the parser knows it.
//!
//! A type that is deserialised names its fields to its input. So an input that only takes notes, and ends with an
//! error at the place that was asked for, finds all keys without a list beside the types.

use crate::failure::{Failure, Outcome};
use crate::settings::Tables;
use serde::de::value::{BorrowedStrDeserializer, Error};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::Value;

/// Stands in a path for the elements of an array.
const ELEMENT: &str = "[]";

/// Keys whose default depends on the machine or the user, or is easier to read otherwise.
const IN_WORDS: &[(&str, &str)] = &[
    ("server.store", "/var/lib/forebay/store for root, else ~/.local/state/forebay/store"),
    ("server.capacity", "a quarter of the free memory, or half of the free disk: 64MiB to 4GiB"),
    ("server.root_mode", "0o1777"),
    ("server.operation_cost", "16KiB"),
    ("server.tcp", "true if listen is set"),
    ("server.drain.age", "10min"),
    ("server.limits.user_working", "half of the cores"),
];

/// A key with what may stand there.
#[derive(Serialize, PartialEq, Debug)]
struct Key {
    /// `server.limits.turns`; elements of an array of tables as `server.servers[].address`.
    key: String,
    /// The words that are allowed, if only some are.
    values: Vec<String>,
    /// The default as TOML; none if the key is absent by default.
    default: Option<String>,
}

/// What the type at a path expects.
#[derive(Clone, PartialEq, Debug)]
enum Shape {
    Fields(&'static [&'static str]),
    Words(&'static [&'static str]),
    Elements,
    Value,
}

pub(super) fn json() -> Outcome<String> {
    let mut found = Vec::new();
    collect::<Tables>(&mut Vec::new(), &mut found);
    let cannot = |error: serde_json::Error| Failure::Failed(format!("cannot print the settings: {error}"));
    let defaults = serde_json::to_value(Tables::default()).map_err(cannot)?;
    let keys: Vec<Key> = found.into_iter().map(|(path, words)| key(&path, words, &defaults)).collect();
    Ok(serde_json::to_string_pretty(&keys).map_err(cannot)? + "\n")
}

fn key(path: &[&'static str], words: &[&str], defaults: &Value) -> Key {
    let key = path.join(".").replace(".[]", ELEMENT);
    let in_words = IN_WORDS.iter().find(|(name, _)| *name == key).map(|(_, text)| (*text).to_owned());
    let mut value = Some(defaults);
    for step in path {
        value = value.and_then(|value| value.get(step));
    }
    // An element has no default; an empty list is one.
    let default = in_words.or_else(|| value.filter(|value| !value.is_null()).map(ToString::to_string));
    Key { key, values: words.iter().map(|word| (*word).to_owned()).collect(), default }
}

/// Notes all keys below a path.
fn collect<'de, T: Deserialize<'de>>(
    path: &mut Vec<&'static str>,
    found: &mut Vec<(Vec<&'static str>, &'static [&'static str])>,
) {
    match shape::<T>(path) {
        Shape::Fields(fields) => {
            for field in fields {
                path.push(field);
                collect::<T>(path, found);
                path.pop();
            }
        }
        Shape::Elements => {
            path.push(ELEMENT);
            match shape::<T>(path) {
                Shape::Fields(_) => collect::<T>(path, found),
                _ => found.push((path[..path.len() - 1].to_vec(), &[])),
            }
            path.pop();
        }
        Shape::Words(words) => found.push((path.clone(), words)),
        Shape::Value => found.push((path.clone(), &[])),
    }
}

fn shape<'de, T: Deserialize<'de>>(path: &[&'static str]) -> Shape {
    let mut shape = Shape::Value;
    // It ends with an error where the path ends.
    let _ = T::deserialize(Probe { path, shape: &mut shape });
    shape
}

/// An input that follows a path and notes what is expected at its end.
struct Probe<'a> {
    path: &'a [&'static str],
    shape: &'a mut Shape,
}

impl Probe<'_> {
    fn stop<V>(self, shape: Shape) -> Result<V, Error> {
        *self.shape = shape;
        Err(Error::custom("noted"))
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        value: V,
    ) -> Result<V::Value, Error> {
        match self.path.is_empty() {
            true => self.stop(Shape::Fields(fields)),
            false => value.visit_map(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, value: V) -> Result<V::Value, Error> {
        match self.path.is_empty() {
            true => self.stop(Shape::Elements),
            false => value.visit_seq(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.stop(Shape::Words(variants))
    }

    fn deserialize_option<V: Visitor<'de>>(self, value: V) -> Result<V::Value, Error> {
        value.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        value: V,
    ) -> Result<V::Value, Error> {
        value.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        self.stop(Shape::Value)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct map identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Probe<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        seed.deserialize(BorrowedStrDeserializer::new(self.path[0])).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Probe { path: &self.path[1..], shape: self.shape })
    }
}

impl<'de> SeqAccess<'de> for Probe<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        seed.deserialize(Probe { path: &self.path[1..], shape: self.shape }).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_key_is_found_with_values_and_default() {
        let text = json().unwrap();
        let keys: Vec<Value> = serde_json::from_str(&text).unwrap();
        let find = |name: &str| {
            let found = keys.iter().find(|key| key["key"] == name);
            found.unwrap_or_else(|| panic!("{name} is missing in {text}")).clone()
        };
        assert_eq!(find("client.service")["default"], Value::Null);
        assert_eq!(find("server.limits.turns")["default"], "16");
        assert_eq!(find("server.medium")["values"], serde_json::json!(["memory", "disk"]));
        assert_eq!(find("server.medium")["default"], "\"memory\"");
        assert_eq!(find("server.peers")["default"], "[]");
        assert_eq!(find("server.servers[].address")["default"], Value::Null);
        assert_eq!(find("server.limits.user_working")["default"], "half of the cores");
        assert!(!text.contains("\"server.topology\""), "not a key of the file");
    }
}
