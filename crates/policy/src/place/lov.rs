//! Lustre's layouts, byte by byte: the value of the attribute `lustre.lov`.
//!
//! All numbers are in native byte order. Fields that this module does not interpret are kept, so that a
//! parsed layout encodes to the same bytes.

use forebay_model::list;
use std::fmt;

/// The name of the attribute.
pub const ATTRIBUTE: &str = "lustre.lov";
/// Largest attribute value.
pub const LONGEST: usize = 64 << 10;

const V1: u32 = 0x0BD1_0BD0;
const V3: u32 = 0x0BD3_0BD0;
const SPECIFIC: u32 = 0x0BD5_0BD0;
const COMPOSITE: u32 = 0x0BD6_0BD0;
const HEADER: usize = 32;
const POOL: usize = 16;
const OBJECT: usize = 24;
const ENTRY: usize = 48;
/// RAID-0: stripes round-robin over targets.
const RAID0: u32 = 1;
/// Lustre chooses the first target.
const ANYWHERE: u16 = 0xffff;
/// The component's objects exist.
const INIT: u32 = 0x10;
const EOF: u64 = u64::MAX;

/// Version of a plain layout.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Version {
    /// Without a pool.
    #[default]
    V1,
    /// With a pool.
    V3,
    /// With a pool, and with requested targets.
    Specific,
}

/// An object on a target.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Object {
    /// Its id.
    pub id: [u64; 2],
    /// Generation of the target index.
    pub generation: u32,
    /// The index of its target.
    pub target: u32,
}

/// A plain layout: stripes over targets.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plain {
    /// Its version.
    pub version: Version,
    /// The striping pattern.
    pub pattern: u32,
    /// The file's id.
    pub id: [u64; 2],
    /// Stripe size in bytes.
    pub size: u32,
    /// Stripe count.
    pub count: u16,
    /// First target index, or the layout generation.
    pub offset: u16,
    /// The pool name, terminated by a zero byte.
    pub pool: [u8; POOL],
    /// The objects, if the layout names them.
    pub objects: Vec<Object>,
}

/// A component of a composite layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its id.
    pub id: u32,
    /// Flags.
    pub flags: u32,
    /// First byte.
    pub start: u64,
    /// One past the last byte; `u64::MAX`: to the end of the file.
    pub end: u64,
    /// The layout generation.
    pub generation: u32,
    /// Timestamp, owner and compression: not interpreted.
    pub rest: [u8; 12],
    /// Its striping.
    pub plain: Plain,
}

/// A composite layout: components with different striping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Composite {
    /// The layout generation.
    pub generation: u32,
    /// Flags.
    pub flags: u16,
    /// Mirrors and padding: not interpreted.
    pub rest: [u8; 16],
    /// The components.
    pub entries: Vec<Entry>,
}

/// A layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lov {
    /// One striping for the whole file.
    Plain(Plain),
    /// Components.
    Composite(Composite),
}

/// Why bytes are not a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// They are too short or too long.
    Length(usize),
    /// They begin with an unknown magic number.
    Magic(u32),
    /// They are inconsistent.
    Nonsense(&'static str),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Length(length) => {
                write!(f, "the layout is truncated or has trailing bytes: {length} bytes")
            }
            Unreadable::Magic(magic) => write!(f, "unknown layout magic {magic:#010x}"),
            Unreadable::Nonsense(what) => write!(f, "the layout is inconsistent: {what}"),
        }
    }
}

impl Lov {
    /// Stripes on exactly these targets.
    #[must_use]
    pub fn specific(targets: &[u32], size: u32) -> Lov {
        Lov::Plain(Plain::specific(targets, size))
    }

    /// Components, each with its end (`None`: the end of the file), on exactly these targets.
    #[must_use]
    pub fn growing(parts: &[(Option<u64>, Vec<u32>, u32)]) -> Lov {
        let mut start = 0;
        let entry = |(number, (end, targets, size)): (usize, &(Option<u64>, Vec<u32>, u32))| {
            let end = end.unwrap_or(EOF);
            let plain = Plain::specific(targets, *size);
            let begin = std::mem::replace(&mut start, end);
            Entry { id: number as u32 + 1, flags: 0, start: begin, end, generation: 0, rest: [0; 12], plain }
        };
        let entries = parts.iter().enumerate().map(entry).collect();
        Lov::Composite(Composite { generation: 0, flags: 0, rest: [0; 16], entries })
    }

    /// Encodes the layout.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Lov::Plain(plain) => plain.encode(),
            Lov::Composite(composite) => composite.encode(),
        }
    }

    /// Decodes a layout.
    pub fn parse(bytes: &[u8]) -> Result<Lov, Unreadable> {
        match Reader(bytes).u32()? {
            COMPOSITE => Composite::parse(bytes).map(Lov::Composite),
            _ => Plain::parse(bytes).map(Lov::Plain),
        }
    }

    /// Total length of the layout that these bytes begin with, if it names its objects.
    #[must_use]
    pub fn length(bytes: &[u8]) -> Option<usize> {
        let mut reader = Reader(bytes);
        let before = match reader.u32().ok()? {
            COMPOSITE => return reader.u32().ok().map(|size| size as usize),
            V1 => HEADER,
            V3 | SPECIFIC => HEADER + POOL,
            _ => return None,
        };
        let count = Reader(bytes.get(HEADER - 4..)?).u16().ok()?;
        Some(before + OBJECT * usize::from(count))
    }

    /// How a layout that was read back differs from this requested one; `None` if it was applied.
    #[must_use]
    pub fn unlike(&self, found: &Lov) -> Option<String> {
        match (self, found) {
            (Lov::Plain(asked), Lov::Plain(found)) => asked.unlike(found),
            (Lov::Composite(asked), Lov::Composite(found)) => {
                let extents =
                    |of: &Composite| list(of.entries.iter().map(|e| format!("{}–{}", e.start, e.end)));
                if extents(asked) != extents(found) {
                    return Some(format!("components {} instead of {}", extents(found), extents(asked)));
                }
                asked.entries.iter().zip(&found.entries).find_map(|(asked, found)| {
                    // A component that was never written has no objects.
                    let started = found.flags & INIT != 0 || !found.plain.objects.is_empty();
                    if started {
                        asked.plain.unlike(&found.plain)
                    } else {
                        asked.plain.unlike_shape(&found.plain)
                    }
                })
            }
            (Lov::Plain(_), Lov::Composite(_)) => Some("components instead of a plain layout".to_owned()),
            (Lov::Composite(_), Lov::Plain(_)) => Some("a plain layout instead of components".to_owned()),
        }
    }

    /// The targets of a file in the order of its stripes, and the stripe size, if the layout is plain RAID-0.
    #[must_use]
    pub fn stripes(&self) -> Option<(Vec<u32>, u64)> {
        match self {
            Lov::Plain(plain) if !plain.objects.is_empty() && plain.size > 0 => {
                let targets = plain.objects.iter().map(|object| object.target).collect();
                Some((targets, plain.size.into()))
            }
            _ => None,
        }
    }

    /// The target that holds an offset, if its object exists.
    #[must_use]
    pub fn target_at(&self, offset: u64) -> Option<u32> {
        let plain = match self {
            Lov::Plain(plain) => plain,
            Lov::Composite(composite) => {
                let holds = |e: &&Entry| (e.start..e.end).contains(&offset) && e.flags & INIT != 0;
                &composite.entries.iter().find(holds)?.plain
            }
        };
        let stripe = offset.checked_div(plain.size.into())?;
        let number = stripe.checked_rem(plain.objects.len() as u64)?;
        Some(plain.objects[number as usize].target)
    }
}

impl Plain {
    fn specific(targets: &[u32], size: u32) -> Plain {
        let object = |&target| Object { target, ..Object::default() };
        Plain {
            version: Version::Specific,
            pattern: RAID0,
            id: [0; 2],
            size,
            count: u16::try_from(targets.len()).unwrap_or(u16::MAX),
            offset: targets.first().map_or(ANYWHERE, |&first| u16::try_from(first).unwrap_or(ANYWHERE)),
            pool: [0; POOL],
            objects: targets.iter().map(object).collect(),
        }
    }

    fn unlike_shape(&self, found: &Plain) -> Option<String> {
        let shape = |of: &Plain| (of.count, of.size);
        (shape(self) != shape(found)).then(|| {
            format!("{} × {} bytes instead of {} × {}", found.count, found.size, self.count, self.size)
        })
    }

    fn unlike(&self, found: &Plain) -> Option<String> {
        let targets = |of: &Plain| of.objects.iter().map(|object| object.target).collect::<Vec<u32>>();
        self.unlike_shape(found).or_else(|| {
            let (asked, found) = (targets(self), targets(found));
            (asked != found).then(|| format!("targets {} instead of {}", list(&found), list(&asked)))
        })
    }

    fn encode(&self) -> Vec<u8> {
        let magic = match self.version {
            Version::V1 => V1,
            Version::V3 => V3,
            Version::Specific => SPECIFIC,
        };
        let mut bytes = Vec::with_capacity(HEADER + POOL + OBJECT * self.objects.len());
        bytes.extend(magic.to_ne_bytes());
        bytes.extend(self.pattern.to_ne_bytes());
        bytes.extend(self.id.iter().flat_map(|part| part.to_ne_bytes()));
        bytes.extend(self.size.to_ne_bytes());
        bytes.extend(self.count.to_ne_bytes());
        bytes.extend(self.offset.to_ne_bytes());
        if self.version != Version::V1 {
            bytes.extend(self.pool);
        }
        for object in &self.objects {
            bytes.extend(object.id.iter().flat_map(|part| part.to_ne_bytes()));
            bytes.extend(object.generation.to_ne_bytes());
            bytes.extend(object.target.to_ne_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Plain, Unreadable> {
        let mut reader = Reader(bytes);
        let version = match reader.u32()? {
            V1 => Version::V1,
            V3 => Version::V3,
            SPECIFIC => Version::Specific,
            other => return Err(Unreadable::Magic(other)),
        };
        let mut plain = Plain {
            version,
            pattern: reader.u32()?,
            id: [reader.u64()?, reader.u64()?],
            size: reader.u32()?,
            count: reader.u16()?,
            offset: reader.u16()?,
            pool: [0; POOL],
            objects: Vec::new(),
        };
        if version != Version::V1 {
            plain.pool = reader.array()?;
        }
        while !reader.0.is_empty() {
            let id = [reader.u64()?, reader.u64()?];
            plain.objects.push(Object { id, generation: reader.u32()?, target: reader.u32()? });
        }
        match plain.objects.len() {
            0 => Ok(plain),
            objects if objects == usize::from(plain.count) => Ok(plain),
            _ => Err(Unreadable::Nonsense("the object count differs from the stripe count")),
        }
    }
}

impl Composite {
    fn encode(&self) -> Vec<u8> {
        let plains: Vec<Vec<u8>> = self.entries.iter().map(|entry| entry.plain.encode()).collect();
        let start = HEADER + ENTRY * self.entries.len();
        let size = start + plains.iter().map(Vec::len).sum::<usize>();
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(COMPOSITE.to_ne_bytes());
        bytes.extend((size as u32).to_ne_bytes());
        bytes.extend(self.generation.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend((self.entries.len() as u16).to_ne_bytes());
        bytes.extend(self.rest);
        let mut offset = start;
        for (entry, plain) in self.entries.iter().zip(&plains) {
            bytes.extend(entry.id.to_ne_bytes());
            bytes.extend(entry.flags.to_ne_bytes());
            bytes.extend(entry.start.to_ne_bytes());
            bytes.extend(entry.end.to_ne_bytes());
            bytes.extend((offset as u32).to_ne_bytes());
            bytes.extend((plain.len() as u32).to_ne_bytes());
            bytes.extend(entry.generation.to_ne_bytes());
            bytes.extend(entry.rest);
            offset += plain.len();
        }
        bytes.extend(plains.into_iter().flatten());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Composite, Unreadable> {
        let mut reader = Reader(bytes);
        reader.u32()?;
        if reader.u32()? as usize != bytes.len() {
            return Err(Unreadable::Length(bytes.len()));
        }
        let (generation, flags, count) = (reader.u32()?, reader.u16()?, reader.u16()?);
        let mut composite = Composite { generation, flags, rest: reader.array()?, entries: Vec::new() };
        let mut next = HEADER + ENTRY * usize::from(count);
        for _ in 0..count {
            let (id, flags) = (reader.u32()?, reader.u32()?);
            let (start, end) = (reader.u64()?, reader.u64()?);
            let (offset, size) = (reader.u32()? as usize, reader.u32()? as usize);
            let (generation, rest) = (reader.u32()?, reader.array()?);
            if offset != next {
                return Err(Unreadable::Nonsense("components are not contiguous"));
            }
            if start >= end {
                return Err(Unreadable::Nonsense("a component ends before it begins"));
            }
            next = offset + size;
            let plain = bytes.get(offset..next).ok_or(Unreadable::Length(bytes.len()))?;
            composite.entries.push(Entry {
                id,
                flags,
                start,
                end,
                generation,
                rest,
                plain: Plain::parse(plain)?,
            });
        }
        if next == bytes.len() { Ok(composite) } else { Err(Unreadable::Length(bytes.len())) }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Unreadable::Length(self.0.len()))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::{Seeded, mutate, rounds};

    fn hex(bytes: &[u8]) -> String {
        bytes
            .chunks(8)
            .map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn object(number: u64, target: u32) -> Object {
        Object { id: [number, 0], generation: 0, target }
    }

    fn plain(version: Version) -> Plain {
        Plain {
            version,
            pattern: RAID0,
            id: [7, 8],
            size: 1 << 20,
            count: 2,
            offset: 3,
            pool: if version == Version::V1 { [0; POOL] } else { *b"fast\0\0\0\0\0\0\0\0\0\0\0\0" },
            objects: vec![object(21, 5), object(22, 9)],
        }
    }

    /// As the structures of Lustre's user header lie in memory on a little-endian machine.
    #[cfg(target_endian = "little")]
    #[test]
    fn layouts_encode_to_lustre_bytes() {
        let v1 = "d00bd10b01000000 0700000000000000 0800000000000000 0000100002000300 \
                  1500000000000000 0000000000000000 0000000005000000 \
                  1600000000000000 0000000000000000 0000000009000000";
        assert_eq!(hex(&Lov::Plain(plain(Version::V1)).encode()), v1);
        let v3 = hex(&Lov::Plain(plain(Version::V3)).encode());
        assert!(v3.starts_with("d00bd30b01000000"), "{v3}");
        assert!(v3.contains("0000100002000300 6661737400000000 0000000000000000 1500000000000000"), "{v3}");
        let specific = "d00bd50b01000000 0000000000000000 0000000000000000 0000010001000400 \
                        0000000000000000 0000000000000000 \
                        0000000000000000 0000000000000000 0000000004000000";
        assert_eq!(hex(&Lov::specific(&[4], 65_536).encode()), specific);
        let parts = Lov::growing(&[(Some(1 << 20), vec![4], 65_536), (None, vec![4, 5], 65_536)]).encode();
        assert_eq!(parts.len(), 32 + 2 * 48 + 72 + 96);
        let header = "d00bd60b28010000 0000000000000200 0000000000000000 0000000000000000";
        assert_eq!(hex(&parts[..32]), header);
        let first = "0100000000000000 0000000000000000 0000100000000000 8000000048000000 \
                     0000000000000000 0000000000000000";
        assert_eq!(hex(&parts[32..80]), first);
        let second = "0200000000000000 0000100000000000 ffffffffffffffff c800000060000000 \
                      0000000000000000 0000000000000000";
        assert_eq!(hex(&parts[80..128]), second);
    }

    #[test]
    fn target_of_an_offset_is_found() {
        let mut growing = Lov::growing(&[(Some(1 << 20), vec![4], 65_536), (None, vec![6, 5], 65_536)]);
        assert_eq!(Lov::specific(&[3, 8], 65_536).target_at(65_536 * 3), Some(8));
        assert_eq!(growing.target_at(5), None, "no object exists yet");
        if let Lov::Composite(composite) = &mut growing {
            composite.entries.iter_mut().for_each(|entry| entry.flags = INIT);
        }
        assert_eq!((growing.target_at(5), growing.target_at((1 << 20) + 65_536)), (Some(4), Some(5)));
        assert_eq!(Lov::specific(&[], 0).target_at(9), None);
    }

    #[test]
    fn layout_that_was_not_applied_is_reported() {
        let asked = Lov::specific(&[3, 8], 65_536);
        assert_eq!(asked.unlike(&asked.clone()), None);
        let mut taken = plain(Version::V3);
        (taken.size, taken.objects) = (65_536, vec![object(1, 3), object(2, 8)]);
        assert_eq!(
            asked.unlike(&Lov::Plain(taken.clone())),
            None,
            "the layout that was read back has another version"
        );
        taken.objects[1].target = 9;
        let why = asked.unlike(&Lov::Plain(taken)).expect("another target");
        assert_eq!(why, "targets 3, 9 instead of 3, 8");
        let why = asked.unlike(&Lov::specific(&[3], 1 << 20)).expect("another shape");
        assert_eq!(why, "1 × 1048576 bytes instead of 2 × 65536");
        let growing = Lov::growing(&[(Some(1 << 20), vec![4], 65_536), (None, vec![6, 5], 65_536)]);
        assert!(asked.unlike(&growing).is_some() && growing.unlike(&asked).is_some());
        assert_eq!(growing.unlike(&growing.clone()), None);
    }

    #[test]
    fn malformed_layouts_are_refused() {
        let good = Lov::Plain(plain(Version::V1)).encode();
        for cut in [0, 3, 31, 33, good.len() - 1] {
            assert!(Lov::parse(&good[..cut]).is_err(), "{cut}");
        }
        assert_eq!(Lov::parse(&good[..32]).expect("without objects").stripes(), None);
        assert_eq!(
            Lov::parse(&good[..56]),
            Err(Unreadable::Nonsense("the object count differs from the stripe count"))
        );
        let foreign = 0x0BD7_0BD0_u32.to_ne_bytes();
        assert_eq!(Lov::parse(&foreign), Err(Unreadable::Magic(0x0BD7_0BD0)));
        assert_eq!((Lov::length(&foreign), Lov::length(&good[..8]), Lov::length(&[])), (None, None, None));
    }

    #[test]
    fn random_layouts_round_trip_or_are_refused() {
        let seeded = Seeded::new();
        let layouts = [
            Lov::Plain(plain(Version::V1)),
            Lov::Plain(plain(Version::V3)),
            Lov::specific(&[1, 2, 3], 65_536),
            Lov::growing(&[(Some(1 << 20), vec![4], 65_536), (None, vec![6, 5], 65_536)]),
        ];
        let samples = layouts.map(|lov| {
            let bytes = lov.encode();
            assert_eq!(Lov::length(&[&bytes[..], &[0; 9]].concat()), Some(bytes.len()), "{lov:?}");
            assert_eq!(Lov::parse(&bytes), Ok(lov));
            bytes
        });
        let mut read = 0;
        for round in rounds(20_000) {
            let mut rng = seeded.rng(round);
            let mut bytes = rng.pick(&samples).clone();
            let other = rng.pick(&samples);
            mutate(&mut bytes, other, &mut rng);
            if let Ok(lov) = Lov::parse(&bytes) {
                read += 1;
                assert_eq!(lov.encode(), bytes, "round {round}");
                let named = |target: u32| bytes.windows(4).any(|word| word == target.to_ne_bytes());
                assert!(lov.target_at(rng.next()).is_none_or(named), "round {round}");
            }
        }
        assert!(read > 0, "no mutated layout could be parsed");
    }
}
