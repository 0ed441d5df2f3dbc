//! The files of a store.

use super::table;
use crate::human;
use forebay_model::{Incarnation, Time};
use forebay_store::{Flaw, Inspection, RecordView, RegionView};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// A store that was given new regions.
#[derive(Serialize)]
pub(crate) struct Replaced {
    store: String,
    incarnation: String,
}

impl Replaced {
    pub(crate) fn new(store: &Path, incarnation: Incarnation) -> Replaced {
        Replaced { store: store.display().to_string(), incarnation: incarnation.to_string() }
    }
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} goes on as incarnation {}", self.store, self.incarnation)
    }
}

/// The faults found in a service, and the repairs.
#[derive(Serialize)]
pub(crate) struct Checked {
    repaired: Vec<String>,
    found: Vec<Flaw>,
}

impl Checked {
    pub(crate) fn new(repaired: Vec<String>, found: Vec<Flaw>) -> Checked {
        Checked { repaired, found }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repaired.iter().try_for_each(|done| writeln!(f, "repaired: {done}"))?;
        for (index, flaw) in self.found.iter().enumerate() {
            let safe = if flaw.safe { " (--repair takes care of it)" } else { "" };
            write!(f, "{}{}{safe}", if index > 0 { "\n" } else { "" }, flaw.what)?;
        }
        match self.found.is_empty() {
            true => write!(f, "nothing is wrong"),
            false => Ok(()),
        }
    }
}

/// A removed store. The text is empty, as for other removals.
#[derive(Serialize)]
pub(crate) struct Removed {
    removed: String,
}

impl Removed {
    pub(crate) fn new(store: &Path) -> Removed {
        Removed { removed: store.display().to_string() }
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The contents of a store's files.
#[derive(Serialize)]
pub(crate) struct Inspected {
    server: u16,
    incarnation: String,
    made: String,
    clean: bool,
    medium: String,
    region_size: u32,
    slots: u32,
    regions: Vec<Region>,
}

#[derive(Serialize)]
struct Region {
    region: u32,
    generation: Option<u32>,
    uid: Option<u32>,
    records: u64,
    bytes: u64,
    stale: u32,
    torn: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Filled only if records were requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    journal: Vec<RecordView>,
}

impl Inspected {
    pub(crate) fn new(found: &Inspection, with_records: bool) -> Inspected {
        let made = i64::try_from(found.made).unwrap_or(i64::MAX);
        Inspected {
            server: found.server.0,
            incarnation: found.incarnation.to_string(),
            made: human::time(Time { secs: made, nanos: 0 }),
            clean: found.clean,
            medium: found.medium.clone(),
            region_size: found.region_size,
            slots: found.slots,
            regions: found.regions.iter().map(|view| Region::new(view, with_records)).collect(),
        }
    }
}

impl Region {
    fn new(view: &RegionView, with_records: bool) -> Region {
        Region {
            region: view.region.0,
            generation: view.generation,
            uid: view.uid.map(|uid| uid.0),
            records: view.records.len() as u64,
            bytes: view.records.iter().map(|record| u64::from(record.len)).sum(),
            stale: view.stale,
            torn: view.torn,
            fault: view.fault.clone(),
            journal: if with_records { view.records.clone() } else { Vec::new() },
        }
    }

    fn is_empty(&self) -> bool {
        self.records == 0 && self.torn == 0 && self.fault.is_none()
    }
}

impl fmt::Display for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = if self.clean { "closed in order" } else { "in use, or its server died" };
        writeln!(f, "store of server {}, incarnation {}", self.server, self.incarnation)?;
        writeln!(f, "  made      {}", self.made)?;
        writeln!(f, "  state     {left}")?;
        writeln!(
            f,
            "  regions   {} of {}, {} records each, on {}",
            self.regions.len(),
            human::size(u64::from(self.region_size)),
            human::count(u64::from(self.slots)),
            self.medium
        )?;
        let shown: Vec<&Region> = self.regions.iter().filter(|region| !region.is_empty()).collect();
        write!(f, "  empty     {}", self.regions.len() - shown.len())?;
        if shown.is_empty() {
            return Ok(());
        }
        write!(f, "\n\n")?;
        self.table(f, &shown)?;
        for region in &shown {
            if let Some(fault) = &region.fault {
                write!(f, "\n  region {}: {fault}", region.region)?;
            }
            region.journal(f)?;
        }
        Ok(())
    }
}

impl Inspected {
    fn table(&self, f: &mut fmt::Formatter<'_>, shown: &[&Region]) -> fmt::Result {
        let head = ["region", "generation", "user", "records", "bytes", "stale", "torn"];
        let mut rows = vec![head.map(str::to_owned)];
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        rows.extend(shown.iter().map(|region| {
            [
                region.region.to_string(),
                number(region.generation),
                number(region.uid),
                human::count(region.records),
                human::size(region.bytes),
                region.stale.to_string(),
                region.torn.to_string(),
            ]
        }));
        table(f, "rrrrrrr", 2, &rows)
    }
}

impl Region {
    fn journal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.journal.is_empty() {
            return Ok(());
        }
        let head = ["slot", "file", "offset", "bytes", "position", "user", "crc32c", "stamp"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.journal.iter().map(|record| {
            [
                record.slot.to_string(),
                record.file.to_string(),
                record.offset.to_string(),
                record.len.to_string(),
                record.position.to_string(),
                record.uid.to_string(),
                format!("{:08x}", record.crc),
                record.stamp.to_string(),
            ]
        }));
        writeln!(f, "\n\n  journal of region {}", self.region)?;
        table(f, "rrrrrrrr", 2, &rows)
    }
}
