//! Checks and repairs all stores of a service that is not running.

use crate::data::{Journals, RecordView, checksum_at, data_name};
use crate::files;
use crate::homes::homes;
use crate::inspect::{Inspection, inspect};
use crate::meta::{FjallKv, Kv};
use crate::names::{Flaw, Kind, check_at_rest, repair_at_rest};
use crate::superblock::Superblock;
use forebay_model::{Bytes, Error, ErrorKind, Member, Members, Result, ServerId, Span};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CACHE: Bytes = Bytes::mib(16);

/// A store that no server can open while this value exists.
pub struct AtRest {
    dir: PathBuf,
    server: ServerId,
    kv: Arc<dyn Kv>,
    /// Keeps the directory locked.
    _lock: File,
}

impl AtRest {
    /// Opens the metadata of a store. Fails while a server uses it.
    pub fn open(dir: &Path) -> Result<AtRest> {
        let superblock = Superblock::read(dir)?;
        let lock = files::lock_dir(dir)?;
        let kv: Arc<dyn Kv> = Arc::new(FjallKv::open(&dir.join("meta"), CACHE)?);
        Ok(AtRest { dir: dir.to_owned(), server: superblock.server, kv, _lock: lock })
    }

    /// The server that owns the store.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Its metadata.
    #[must_use]
    pub fn meta(&self) -> &Arc<dyn Kv> {
        &self.kv
    }
}

/// The service that these stores make up.
fn service(stores: &[AtRest]) -> Result<Members> {
    let member = |store: &AtRest| Member {
        server: store.server,
        address: store.dir.display().to_string(),
        socket: None,
    };
    let members = Members::new(1, stores.iter().map(member).collect())
        .map_err(|why| Error::new(ErrorKind::Invalid, why))?;
    match stores.first() {
        Some(store) => Ok(members.with_names(homes(&*store.kv)?)),
        None => Ok(members),
    }
}

fn journals(stores: &[AtRest]) -> Result<Vec<Inspection>> {
    stores.iter().map(|store| inspect(&store.dir)).collect()
}

fn views(journals: &[Inspection]) -> Vec<Journals<'_>> {
    journals.iter().map(|one| Journals { regions: &one.regions, clean: one.clean }).collect()
}

/// Reports what is wrong with the stores of a service: loops, orphans, wrong link counts, dangling names, sizes, lost
/// bytes, damaged regions. Needs all stores of the service.
pub fn check_stores(stores: &[AtRest]) -> Result<Vec<Flaw>> {
    let (members, journals) = (service(stores)?, journals(stores)?);
    let kvs: Vec<&dyn Kv> = stores.iter().map(|store| &*store.kv).collect();
    let mut found = check_at_rest(&members, &kvs, &views(&journals));
    for (store, journal) in stores.iter().zip(&journals) {
        let faults =
            journal.regions.iter().filter_map(|region| Some((region.region, region.fault.as_ref()?)));
        found.extend(faults.map(|(region, fault)| Flaw {
            kind: Kind::Region,
            what: format!("{}, region {region}: {fault}", store.dir.display()),
            safe: false,
        }));
    }
    Ok(found)
}

/// Reads the bytes of every record of the stores, and reports those that cannot be read or fail their checksum.
pub fn check_payloads(stores: &[AtRest]) -> Result<Vec<Flaw>> {
    let mut found = Vec::new();
    for store in stores {
        for region in inspect(&store.dir)?.regions.iter().filter(|region| !region.records.is_empty()) {
            let path = files::regions_dir(&store.dir).join(data_name(region.region));
            let flaw = |what: String| Flaw {
                kind: Kind::Region,
                what: format!("{}, region {}{what}", store.dir.display(), region.region),
                safe: false,
            };
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) => {
                    found.push(flaw(format!(": {}", files::failed("open", &path, &error))));
                    continue;
                }
            };
            for record in &region.records {
                let RecordView { slot, file: id, offset, len, position, crc, .. } = *record;
                let span = Span::new(offset, offset + u64::from(len));
                let wrong = match checksum_at(&file, position.into(), len.into()) {
                    Ok(sum) if sum == crc => continue,
                    Ok(_) => "fail their checksum".to_owned(),
                    Err(error) => format!("cannot be read: {error}"),
                };
                found.push(flaw(format!(", record {slot}: file {id} bytes {span} {wrong}")));
            }
        }
    }
    Ok(found)
}

/// Repairs what is safe to repair, and reports what it did. Removes dangling names and bytes of files without an inode
/// only if `drop_dangling`.
pub fn repair_stores(stores: &[AtRest], drop_dangling: bool) -> Result<Vec<String>> {
    let (members, journals) = (service(stores)?, journals(stores)?);
    let kvs: Vec<Arc<dyn Kv>> = stores.iter().map(|store| Arc::clone(&store.kv)).collect();
    repair_at_rest(&members, &kvs, &views(&journals), drop_dangling)
}
