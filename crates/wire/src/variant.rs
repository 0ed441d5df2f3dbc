//! What a message is called, for errors about one that was not expected.

use serde::Serialize;
use serde::ser::{Impossible, Serializer};
use std::fmt;

/// The name of an enum's variant, such as `Walk`. Its fields may be long, and hold what the reader must not see.
pub fn variant_name(value: &impl Serialize) -> &'static str {
    match value.serialize(Namer) {
        Ok(name) | Err(Named(name)) => name,
    }
}

/// Stops at the first name of a variant.
struct Namer;

/// The name that a serialisation stopped at.
#[derive(Debug)]
struct Named(&'static str);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Named {}

impl serde::ser::Error for Named {
    fn custom<T: fmt::Display>(_: T) -> Named {
        NAMELESS
    }
}

type Outcome = Result<&'static str, Named>;
type Never = Impossible<&'static str, Named>;

/// What is no enum.
const NAMELESS: Named = Named("a value");

macro_rules! nameless {
    ($($method:ident: $kind:ty),* $(,)?) => {
        $(fn $method(self, _: $kind) -> Outcome {
            Err(NAMELESS)
        })*
    };
}

impl Serializer for Namer {
    type Ok = &'static str;
    type Error = Named;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Never;
    type SerializeStructVariant = Never;

    nameless! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_f32: f32,
        serialize_f64: f64,
        serialize_char: char,
        serialize_str: &str,
        serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_none(self) -> Outcome {
        Err(NAMELESS)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Outcome {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Outcome {
        Err(NAMELESS)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Outcome {
        Ok(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Outcome {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: &T,
    ) -> Outcome {
        Ok(variant)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Never, Named> {
        Err(NAMELESS)
    }

    fn serialize_tuple(self, _: usize) -> Result<Never, Named> {
        Err(NAMELESS)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Never, Named> {
        Err(NAMELESS)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Never, Named> {
        Err(Named(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Never, Named> {
        Err(NAMELESS)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Never, Named> {
        Err(NAMELESS)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Never, Named> {
        Err(Named(variant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_variant_has_its_name() {
        #[derive(Serialize)]
        enum Message {
            Unit,
            One(u64),
            Two(u64, u64),
            Fields { secret: u64 },
        }
        let messages = [Message::Unit, Message::One(1), Message::Two(1, 2), Message::Fields { secret: 3 }];
        assert_eq!(messages.each_ref().map(variant_name), ["Unit", "One", "Two", "Fields"]);
        assert_eq!(variant_name(&Some(Message::Unit)), "Unit");
        assert_eq!(variant_name(&7), "a value");
    }
}
