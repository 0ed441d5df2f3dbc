//! The stores of a service that is not running: checked and repaired together.

use crate::files;
use crate::homes::homes;
use crate::inspect::inspect;
use crate::meta::{FjallKv, Kv};
use crate::names::{Body, Extent, Names, check, check_all, repair};
use crate::superblock::Superblock;
use forebay_model::{Bytes, Error, ErrorKind, Incarnation, Member, Members, Result, ServerId};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CACHE: Bytes = Bytes::mib(16);

/// A store that nobody serves for as long as this is held.
pub struct AtRest {
    dir: PathBuf,
    server: ServerId,
    incarnation: Incarnation,
    kv: Arc<dyn Kv>,
    /// Held for its lock.
    _lock: File,
}

impl AtRest {
    /// Opens the metadata of a store. Fails while a server uses it.
    pub fn open(dir: &Path) -> Result<AtRest> {
        let superblock = Superblock::read(dir)?;
        let lock = files::lock_dir(dir)?;
        let kv: Arc<dyn Kv> = Arc::new(FjallKv::open(&dir.join("meta"), CACHE)?);
        let (server, incarnation) = (superblock.server, superblock.incarnation);
        Ok(AtRest { dir: dir.to_owned(), server, incarnation, kv, _lock: lock })
    }

    /// The server it belongs to.
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

/// The service that these stores make up, all of them.
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

/// Says what is wrong with the stores of a service, one sentence each: loops, orphans, wrong link counts, names that
/// lead nowhere, lengths, lost bytes, damaged regions. All stores of the service have to be given.
pub fn check_stores(stores: &[AtRest]) -> Result<Vec<String>> {
    let kvs: Vec<&dyn Kv> = stores.iter().map(|store| &*store.kv).collect();
    let mut found = match kvs[..] {
        [kv] => check(kv),
        _ => check_all(&service(stores)?, &kvs),
    };
    let lives: BTreeMap<ServerId, Incarnation> =
        stores.iter().map(|store| (store.server, store.incarnation)).collect();
    for store in stores {
        lost_bytes(store, &lives, &mut found)?;
        let regions = inspect(&store.dir)?.regions;
        let faults =
            regions.iter().filter_map(|region| region.fault.as_ref().map(|fault| (region.region, fault)));
        found.extend(
            faults.map(|(region, fault)| format!("{}, region {region}: {fault}", store.dir.display())),
        );
    }
    Ok(found)
}

/// Files whose bytes were held by stores that are gone.
fn lost_bytes(
    store: &AtRest,
    lives: &BTreeMap<ServerId, Incarnation>,
    found: &mut Vec<String>,
) -> Result<()> {
    Names::open(Arc::clone(&store.kv), store.server)?.each_inode(&mut |file, inode| {
        if let Body::File { layout, incarnations, extent } = &inode.body
            && *extent != Extent::default()
        {
            if layout.servers.len() != incarnations.len() {
                found.push(format!(
                    "file {file} knows {} stores for {} servers",
                    incarnations.len(),
                    layout.servers.len()
                ));
            }
            for (server, incarnation) in layout.servers.iter().zip(incarnations) {
                if *server != store.server && lives.get(server).is_some_and(|life| life != incarnation) {
                    found.push(format!(
                        "file {file}: what server {server} held of it was lost with its store"
                    ));
                }
            }
        }
        ControlFlow::Continue(())
    })
}

/// Repairs what is safe to repair, and says what it did. Names that lead nowhere go only if `drop_dangling`.
pub fn repair_stores(stores: &[AtRest], drop_dangling: bool) -> Result<Vec<String>> {
    let kvs: Vec<Arc<dyn Kv>> = stores.iter().map(|store| Arc::clone(&store.kv)).collect();
    repair(&service(stores)?, &kvs, drop_dangling)
}
