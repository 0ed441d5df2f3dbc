//! The file `store`: the identity of a store and how it was closed.

use crate::data::{FORMAT as REGIONS, Geometry, sync_dir};
use crate::files::{bad, failed};
use crc32c::crc32c;
use forebay_model::{Incarnation, Result, ServerId};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::OnceLock;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

const NAME: &str = "store";
/// This version adds the metadata log ahead, which older programs would ignore. The version before it is read too.
const FORMAT: u32 = REGIONS + 1;
const MAGIC: [u8; 8] = *b"FOREBAY\0";
/// Upper bound of the size of a superblock.
const MOST: u64 = 4096;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    crc: U32,
    incarnation: U128,
    boot: [u8; 16],
    regions: U32,
    size: U32,
    slots: U32,
    server: U16,
    clean: u8,
    reserved: u8,
    made: U64,
}

/// Bytes of a superblock.
pub(crate) const HEAD: usize = size_of::<Raw>();

/// The identity of a store and how it was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) incarnation: Incarnation,
    pub(crate) server: ServerId,
    pub(crate) geometry: Geometry,
    /// The machine boot in which the store was last opened.
    pub(crate) boot: [u8; 16],
    /// Whether it was closed cleanly.
    pub(crate) clean: bool,
    /// When it was created, in seconds since the Unix epoch.
    pub(crate) made: u64,
}

impl Superblock {
    pub(crate) fn exists(dir: &Path) -> bool {
        dir.join(NAME).exists()
    }

    pub(crate) fn read(dir: &Path) -> Result<Superblock> {
        let path = dir.join(NAME);
        let mut bytes = Vec::new();
        // A foreign file in its place may be long.
        let read = File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        read.map_err(|error| failed("read", &path, &error))?;
        Superblock::decode(&path, &bytes)
    }

    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Superblock> {
        let damaged =
            || bad(format!("{} is not the superblock of a Forebay store, or is damaged", path.display()));
        let raw = Raw::read_from_bytes(bytes).map_err(|_| damaged())?;
        if raw.magic != MAGIC {
            return Err(damaged());
        }
        if ![REGIONS, FORMAT].contains(&raw.format.get()) {
            return Err(bad(format!(
                "{} has format {}, this program reads format {FORMAT}: use the version of Forebay that made it",
                path.display(),
                raw.format
            )));
        }
        let geometry = Geometry { regions: raw.regions.get(), size: raw.size.get(), slots: raw.slots.get() };
        if raw.crc.get() != checksum(&raw) || !geometry.is_possible() {
            return Err(damaged());
        }
        Ok(Superblock {
            incarnation: Incarnation(raw.incarnation.get()),
            server: ServerId(raw.server.get()),
            geometry,
            boot: raw.boot,
            clean: raw.clean == 1,
            made: raw.made.get(),
        })
    }

    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut raw = Raw {
            magic: MAGIC,
            format: FORMAT.into(),
            crc: U32::ZERO,
            incarnation: self.incarnation.0.into(),
            boot: self.boot,
            regions: self.geometry.regions.into(),
            size: self.geometry.size.into(),
            slots: self.geometry.slots.into(),
            server: self.server.0.into(),
            clean: self.clean.into(),
            reserved: 0,
            made: self.made.into(),
        };
        raw.crc = checksum(&raw).into();
        transmute!(raw)
    }

    /// Replaces the file atomically.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let (path, fresh) = (dir.join(NAME), dir.join("store.new"));
        let replace = || {
            let mut file = File::create(&fresh)?;
            file.write_all(&self.encode())?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)?;
            sync_dir(dir)
        };
        replace().map_err(|error| failed("write", &path, &error))
    }
}

fn checksum(raw: &Raw) -> u32 {
    crc32c(&raw.as_bytes()[16..])
}

/// The id of the machine's current boot, read once: each binding of a ring asks for it.
pub(crate) fn boot_id() -> Result<[u8; 16]> {
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    match BOOT.get() {
        Some(id) => Ok(*id),
        None => read_boot_id().map(|id| *BOOT.get_or_init(|| id)),
    }
}

fn read_boot_id() -> Result<[u8; 16]> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(|error| failed("read", path, &error))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16);
    Ok(number.map_err(|_| bad(format!("{} does not hold a boot id", path.display())))?.to_be_bytes())
}
