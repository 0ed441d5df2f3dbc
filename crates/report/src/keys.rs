//! Reads TOML key by key; every error names file, line and key.

use crate::quantity;
use forebay_model::{Error, ErrorKind};
use serde::Serialize;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The input file, for messages.
pub struct File<'a> {
    /// The path of the file, or another name for it.
    pub name: &'a str,
    /// What it contains.
    pub text: &'a str,
}

impl File<'_> {
    /// An error at a place in the file.
    pub fn wrong(&self, span: &Range<usize>, key: &str, text: impl std::fmt::Display) -> Error {
        let line = 1 + self.text[..span.start.min(self.text.len())].matches('\n').count();
        Error::new(ErrorKind::Invalid, format!("{}:{line}: {key}: {text}", self.name))
    }
}

/// A table whose keys are taken one by one; a key left at the end is unknown.
pub struct Table<'a> {
    file: &'a File<'a>,
    /// Prefix of keys in messages.
    pub path: String,
    /// Where it is in the file.
    pub span: Range<usize>,
    left: DeTable<'a>,
}

/// A value with its key and place, for messages.
pub struct Value<'a> {
    file: &'a File<'a>,
    /// The key, with the names of the tables above it.
    pub key: String,
    value: Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    /// The top-level table of the file.
    pub fn top(file: &'a File<'a>) -> Result<Table<'a>, Error> {
        let parsed = DeTable::parse(file.text)
            .map_err(|e| file.wrong(&e.span().unwrap_or(0..0), "the file is not TOML", e.message()))?;
        Ok(Table { file, path: String::new(), span: 0..0, left: parsed.into_inner() })
    }

    /// Takes the value of a key, if it is given.
    pub fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let value = self.left.remove(key)?;
        Some(Value { file: self.file, key: format!("{}{key}", self.path), value })
    }

    /// An error: a required key is not given.
    pub fn missing(&self, key: &str, help: &str) -> Error {
        self.file.wrong(&self.span, &format!("{}{key}", self.path), format!("missing: {help}"))
    }

    /// The keys not taken yet, with their places.
    pub fn keys(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        self.left.keys().map(|key| (key.get_ref().as_ref(), key.span()))
    }

    /// All remaining keys and values.
    pub fn all(self) -> Vec<(String, Value<'a>)> {
        let (file, path) = (self.file, self.path);
        let named = |(key, value): (Spanned<std::borrow::Cow<'a, str>>, _)| {
            let name = key.get_ref().to_string();
            (name.clone(), Value { file, key: format!("{path}{name}"), value })
        };
        self.left.into_iter().map(named).collect()
    }

    /// An error at a place in this table's file.
    pub fn at(&self, span: &Range<usize>, key: &str, text: impl std::fmt::Display) -> Error {
        self.file.wrong(span, key, text)
    }

    /// Refuses keys that were not taken.
    pub fn finish(self, known: &str) -> Result<(), Error> {
        match self.left.into_iter().next() {
            None => Ok(()),
            Some((key, _)) => {
                let name = format!("{}{}", self.path, key.get_ref());
                Err(self.file.wrong(&key.span(), &name, format!("not a known key: known here are {known}")))
            }
        }
    }
}

/// A name in the file: a text or a number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(untagged)]
pub enum Name {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Number(number) => write!(f, "{number}"),
            Name::Text(text) => f.write_str(text),
        }
    }
}

/// A number in model units, or a text with a unit.
pub enum Amount {
    /// A number in model units.
    Units(f64),
    /// A text with a unit, in bytes and seconds.
    Human(f64),
}

impl<'a> Value<'a> {
    /// An error at this value.
    pub fn wrong(&self, text: impl std::fmt::Display) -> Error {
        self.file.wrong(&self.value.span(), &self.key, text)
    }

    /// A finite number.
    pub fn number(&self) -> Result<f64, Error> {
        let digits = match self.value.get_ref() {
            DeValue::Integer(n) => n.to_string().replace('_', ""),
            DeValue::Float(n) => n.as_str().replace('_', ""),
            other => return Err(self.wrong(format!("a number is needed, not {}", kind(other)))),
        };
        match digits.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(n),
            _ => Err(self.wrong(format!("{digits} is not a finite number"))),
        }
    }

    /// A number that is not negative.
    pub fn amount(&self) -> Result<f64, Error> {
        let n = self.number()?;
        if n < 0.0 { Err(self.wrong(format!("{n} is negative"))) } else { Ok(n) }
    }

    /// A number above 0.
    pub fn above_zero(&self) -> Result<f64, Error> {
        let n = self.amount()?;
        if n > 0.0 { Ok(n) } else { Err(self.wrong("0 is not the size of a unit")) }
    }

    /// A text.
    pub fn text(&self) -> Result<&str, Error> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            other => Err(self.wrong(format!("a text is needed, not {}", kind(other)))),
        }
    }

    /// True or false.
    pub fn truth(&self) -> Result<bool, Error> {
        match self.value.get_ref() {
            DeValue::Boolean(b) => Ok(*b),
            other => Err(self.wrong(format!("true or false is needed, not {}", kind(other)))),
        }
    }

    /// A share from 0 to 1, or a text such as `20%`.
    pub fn share(&self) -> Result<f64, Error> {
        if let DeValue::String(text) = self.value.get_ref() {
            return quantity::share(text).map_err(|e| self.wrong(e));
        }
        let n = self.number()?;
        if (0.0..=1.0).contains(&n) { Ok(n) } else { Err(self.wrong(format!("{n} is not between 0 and 1"))) }
    }

    /// A text with a unit.
    pub fn human(&self, read: fn(&str) -> Result<f64, String>) -> Result<f64, Error> {
        read(self.text()?).map_err(|e| self.wrong(e))
    }

    /// A number in model units, or a text with a unit.
    pub fn units_or(&self, read: fn(&str) -> Result<f64, String>) -> Result<Amount, Error> {
        match self.value.get_ref() {
            DeValue::String(_) => Ok(Amount::Human(self.human(read)?)),
            _ => Ok(Amount::Units(self.amount()?)),
        }
    }

    /// A table; `path` is the prefix of its keys in messages.
    pub fn table(self, path: &str) -> Result<Table<'a>, Error> {
        let span = self.value.span();
        match self.value.into_inner() {
            DeValue::Table(left) => Ok(Table { file: self.file, path: path.to_owned(), span, left }),
            other => {
                Err(self.file.wrong(&span, &self.key, format!("a table is needed, not {}", kind(&other))))
            }
        }
    }

    /// All tables headed `[[key]]`; `what` is the noun for one of them in messages.
    pub fn tables(self, what: &str) -> Result<Vec<Table<'a>>, Error> {
        let (file, key, span) = (self.file, self.key, self.value.span());
        let DeValue::Array(items) = self.value.into_inner() else {
            return Err(file.wrong(&span, &key, format!("write each {what} as a table headed [[{key}]]")));
        };
        items
            .into_iter()
            .enumerate()
            .map(|(i, value)| {
                let name = format!("{key} {}", i + 1);
                Value { file, key: name.clone(), value }.table(&format!("{name}: "))
            })
            .collect()
    }

    /// A whole number in a range.
    pub fn whole(&self, range: RangeInclusive<u32>) -> Result<u32, Error> {
        let n = self.number()?;
        let whole = n as u32;
        if f64::from(whole) == n && range.contains(&whole) {
            return Ok(whole);
        }
        Err(self.wrong(format!("{n} is not a whole number from {} to {}", range.start(), range.end())))
    }

    /// A list of texts.
    pub fn texts(&self) -> Result<Vec<String>, Error> {
        let DeValue::Array(items) = self.value.get_ref() else {
            return Err(self.wrong(format!("a list of texts is needed, not {}", kind(self.value.get_ref()))));
        };
        let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => Ok(number.to_string()),
            other => Err(self.wrong(format!("a list of texts is needed, not of {}", kind(other)))),
        };
        items.iter().map(text).collect()
    }

    /// A name: a text or a number.
    pub fn name(&self) -> Result<Name, Error> {
        match self.value.get_ref() {
            DeValue::Integer(number) => {
                let number = number.to_string();
                number.parse().map(Name::Number).map_err(|_| self.wrong(format!("{number} is too large")))
            }
            _ => self.text().map(|text| Name::Text(text.to_owned())),
        }
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
