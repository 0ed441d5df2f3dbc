//! Finds what may be lost, by scanning this server's store.

use super::{LossSearch, SUSPECTS, Sign, Suspect};
use crate::cluster::membership::{Stores, first_id};
use crate::file_homes::is_striped;
use forebay_model::{ErrorKind, FileId, Name, Result};
use forebay_store::{Body, Inode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;

/// What is searched for, and what was found.
struct Scan<'a> {
    search: &'a LossSearch,
    stores: Stores,
    found: Vec<Suspect>,
    /// Directories of lost stores, and how many of their names are on this server.
    stranded: BTreeMap<FileId, u64>,
}

impl LossSearch {
    /// Scans everything; also returns whether the scan is complete.
    pub(super) fn suspects(&self) -> Result<(Vec<Suspect>, bool)> {
        let (stranded, stores) = (BTreeMap::new(), self.join_state.replaced());
        let mut scan = Scan { search: self, stores, found: Vec::new(), stranded };
        scan.inodes()?;
        if !scan.stores.is_empty() {
            scan.entries()?;
            scan.bytes();
        }
        let all = !scan.is_full();
        let stranded = scan.stranded.into_iter().map(|(dir, names)| Suspect::of(dir, Sign::Entries(names)));
        Ok((scan.found.into_iter().chain(stranded).collect(), all))
    }

    /// Checks suspects again: they may have changed, moved or gone.
    pub(super) fn reread(&self, list: &[Suspect]) -> Result<Vec<Suspect>> {
        let mut left = Vec::new();
        for suspect in list {
            left.extend(self.reread_one(suspect)?);
        }
        self.find_local_names(&mut left)?;
        Ok(left)
    }

    fn reread_one(&self, suspect: &Suspect) -> Result<Option<Suspect>> {
        let file = suspect.file;
        Ok(match &suspect.sign {
            Sign::Held(..) => {
                let Some(inode) = self.inode_of(file)? else { return Ok(None) };
                let mut now = self.suspect_bytes(file, &inode)?.into_iter();
                let now = now.find(|now| now.server == suspect.server);
                now.map(|now| Suspect {
                    name: suspect.name.clone().filter(|_| now.dir == suspect.dir),
                    ..now
                })
            }
            Sign::Leads(_) => {
                let (Some(dir), Some(name)) = (suspect.dir, &suspect.name) else { return Ok(None) };
                self.store.names().leads(dir, name, file)?.then(|| suspect.clone())
            }
            &Sign::Nameless { kind, names, size } => {
                let Some(inode) = self.inode_of(file)? else { return Ok(None) };
                let listed = inode.parents.iter().filter(|&&dir| Some(dir) == suspect.dir).count();
                let names = names.min(u32::try_from(listed).unwrap_or(u32::MAX));
                let sign = Sign::Nameless { kind, names, size };
                (names > 0).then(|| Suspect { sign, ..suspect.clone() })
            }
            Sign::Bytes => (self.store.data().facts(file)?.buffered > 0).then(|| suspect.clone()),
            Sign::Entries(_) => Some(suspect.clone()),
        })
    }

    fn inode_of(&self, file: FileId) -> Result<Option<Inode>> {
        match self.store.names().inode(file) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks up names, among those homed on this server, of files with lost bytes.
    fn find_local_names(&self, list: &mut [Suspect]) -> Result<()> {
        let (members, names) = (self.members.members(), self.store.names());
        let mut wanted = HashSet::new();
        for suspect in list.iter_mut().filter(|suspect| matches!(suspect.sign, Sign::Held(..))) {
            let Some(dir) = suspect.dir else { continue };
            if let Some(name) = &suspect.name {
                let is_here = members.home(dir, name) == self.own;
                if !is_here || names.leads(dir, name, suspect.file)? {
                    continue;
                }
            }
            suspect.name = None;
            wanted.insert((dir, suspect.file));
        }
        let known = self.names_of(&wanted)?;
        for suspect in list.iter_mut().filter(|suspect| suspect.name.is_none()) {
            let place = suspect.dir.map(|dir| (dir, suspect.file));
            suspect.name = place.and_then(|place| known.get(&place).cloned());
        }
        Ok(())
    }

    /// The names of files in directories, among those homed on this server.
    pub(super) fn names_of(
        &self,
        wanted: &HashSet<(FileId, FileId)>,
    ) -> Result<HashMap<(FileId, FileId), Name>> {
        let mut known = HashMap::new();
        if !wanted.is_empty() {
            self.store.names().each_entry(&mut |dir, name, target| {
                if wanted.contains(&(dir, target.file)) {
                    known.insert((dir, target.file), name.clone());
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(known)
    }

    /// The holders that may have lost bytes of a file of this authority. A file without a name was removed.
    fn suspect_bytes(&self, file: FileId, inode: &Inode) -> Result<Vec<Suspect>> {
        let (Body::File { layout, incarnations, extent }, Some(dir)) = (&inode.body, inode.parent()) else {
            return Ok(Vec::new());
        };
        let local = self.store.data().facts(file)?.size;
        let below = if extent.size_pending { u64::MAX } else { extent.least.max(local) };
        let held = layout.servers.iter().zip(incarnations).enumerate();
        // Bytes in the back end are not lost.
        let recovers = self.layer.to_recover(file)?;
        let suspected = held.filter(|&(index, (&server, &incarnation))| {
            let known = self.join_state.known(server).map(|(known, _)| known);
            let changed = is_striped(extent) && known != Some(incarnation) && layout.share(index, below) > 0;
            let changed = changed && !recovers.iter().any(|(other, _)| *other == server);
            // Unreadable bytes are checked again on request.
            let missing = || self.missing(file, layout, None).is_ok_and(|lost| lost.is_some());
            if server == self.own { missing() } else { changed }
        });
        let suspect = |(_, (&server, _))| {
            let sign = Sign::Held(layout.clone(), below);
            Suspect { server: Some(server), file, dir: Some(dir), name: None, sign }
        };
        Ok(suspected.map(suspect).collect())
    }
}

impl Scan<'_> {
    fn is_full(&self) -> bool {
        self.found.len() + self.stranded.len() >= SUSPECTS
    }

    fn continue_unless_full(&self) -> ControlFlow<()> {
        if self.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether a lost store created this file.
    fn has_lost_peer_store(&self, file: FileId) -> bool {
        let replacements = self.stores.get(&file.maker()).map(|&(_, replacements)| replacements);
        file != FileId::ROOT && replacements.is_some_and(|replacements| file.count() < first_id(replacements))
    }

    fn inodes(&mut self) -> Result<()> {
        let (search, mut fault) = (self.search, None);
        search.store.names().each_inode(&mut |file, inode| match search.suspect_bytes(file, inode) {
            Ok(found) => {
                self.found.extend(found);
                self.continue_unless_full()
            }
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        })?;
        fault.map_or(Ok(()), Err)
    }

    fn entries(&mut self) -> Result<()> {
        self.search.store.names().each_entry(&mut |dir, name, target| {
            if self.has_lost_peer_store(dir) {
                *self.stranded.entry(dir).or_default() += 1;
            }
            if self.has_lost_peer_store(target.file) {
                let suspect = Suspect::of(target.file, Sign::Leads(target.kind));
                self.found.push(Suspect { dir: Some(dir), name: Some(name.clone()), ..suspect });
            }
            self.continue_unless_full()
        })
    }

    fn bytes(&mut self) {
        let files = self.search.store.data().files();
        let orphaned = files.into_iter().filter(|&file| self.has_lost_peer_store(file));
        let orphaned: Vec<Suspect> = orphaned.map(|file| Suspect::of(file, Sign::Bytes)).collect();
        let space = SUSPECTS.saturating_sub(self.found.len());
        self.found.extend(orphaned.into_iter().take(space));
    }
}

impl Suspect {
    /// A suspect that the server that created it must know.
    fn of(file: FileId, sign: Sign) -> Suspect {
        Suspect { server: Some(file.maker()), file, dir: None, name: None, sign }
    }
}
