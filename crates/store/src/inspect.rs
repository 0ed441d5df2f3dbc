//! Reads a store's files from outside, without opening or changing the store.

use crate::data::{RecordView, read_journal};
use crate::files::{describe_medium, failed, regions_dir};
use crate::superblock::Superblock;
use forebay_model::{Bytes, Incarnation, RegionId, Result, ServerId, Uid};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The content of a store's files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Inspection {
    /// The server that owns the store.
    pub server: ServerId,
    /// The incarnation of the store.
    pub incarnation: Incarnation,
    /// When it was created, in seconds since the Unix epoch.
    pub made: u64,
    /// Whether it was closed cleanly.
    pub clean: bool,
    /// The storage of the regions.
    pub medium: String,
    /// Bytes in a region.
    pub region_size: u32,
    /// Records in a region's journal.
    pub slots: u32,
    /// The regions.
    pub regions: Vec<RegionView>,
}

/// The content of one region's journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RegionView {
    /// The region.
    pub region: RegionId,
    /// Its generation; absent if the header is damaged.
    pub generation: Option<u32>,
    /// The user whose bytes it holds.
    pub uid: Option<Uid>,
    /// Records of the current generation.
    pub records: Vec<RecordView>,
    /// Slots with a record of an older generation.
    pub stale: u32,
    /// Slots without a complete record.
    pub torn: u32,
    /// What is wrong with the region.
    pub fault: Option<String>,
}

/// Reads the superblock and all journals of the store in a directory. A server may be using it at the same time.
pub fn inspect(dir: &Path) -> Result<Inspection> {
    let superblock = Superblock::read(dir)?;
    let regions = (0..superblock.geometry.regions).map(|number| {
        let path = regions_dir(dir).join(format!("r{number:05}.log"));
        let mut bytes = Vec::new();
        let read = File::open(&path)
            .and_then(|file| file.take(superblock.geometry.log_len()).read_to_end(&mut bytes));
        match read {
            Ok(_) => read_journal(RegionId(number), &bytes, superblock.incarnation),
            Err(error) => RegionView {
                region: RegionId(number),
                generation: None,
                uid: None,
                records: Vec::new(),
                stale: 0,
                torn: 0,
                fault: Some(failed("read", &path, &error).to_string()),
            },
        }
    });
    Ok(Inspection {
        server: superblock.server,
        incarnation: superblock.incarnation,
        made: superblock.made,
        clean: superblock.clean,
        medium: describe_medium(dir),
        region_size: superblock.geometry.size,
        slots: superblock.geometry.slots,
        regions: regions.collect(),
    })
}

/// Bytes that files can fill in the store in a directory; `None` if it holds no store.
pub fn capacity_of(dir: &Path) -> Result<Option<Bytes>> {
    if !Superblock::exists(dir) {
        return Ok(None);
    }
    let geometry = Superblock::read(dir)?.geometry;
    // One region is reserved for the cleaner.
    Ok(Some(Bytes(u64::from(geometry.regions.saturating_sub(1)) * u64::from(geometry.size))))
}
